#include "gradwire/rpc/inspect/read_peers.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gradwire/base/process/host.h"
#include "gradwire/rpc/inspect/limits.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peers.h"

namespace gradwire::rpc {
namespace {

// A peer has few connections; this bounds what a faulty one could make.
constexpr std::size_t kMostLinks = 16;

proto::PeerState::State state_of(WorkerState state) {
  switch (state) {
    case WorkerState::kAlive:
      return proto::PeerState::ALIVE;
    case WorkerState::kSuspect:
      return proto::PeerState::SUSPECT;
    case WorkerState::kDead:
      return proto::PeerState::DEAD;
    case WorkerState::kLeft:
      return proto::PeerState::LEFT;
  }
  return proto::PeerState::ALIVE;
}

void read_links(const Peer::View& view, absl::Time now, proto::PeerState& out) {
  for (std::size_t i = 0; i < std::min(view.links.size(), kMostLinks); ++i) {
    const Link& link = *view.links[i];
    proto::LinkState& entry = *out.add_links();
    entry.set_transport(link.transport());
    entry.set_made_here(link.made_here());
    entry.set_in_use(i == 0 && view.link_in_use);
    const LinkSender::Traffic traffic = link.traffic();
    entry.set_bytes_sent(traffic.sent);
    entry.set_bytes_received(traffic.received);
    entry.set_messages_sent(link.departed());
    entry.set_queued_bytes(link.queued_bytes());
    entry.set_number(link.number());
    entry.set_no_room_bytes(traffic.no_room.bytes);
    entry.set_no_room_us(traffic.no_room.bytes == 0
                             ? -1
                             : std::max<int64_t>(0, absl::ToInt64Microseconds(now - traffic.no_room.last)));
  }
}

proto::PeerState read_peer(const Peer& peer, const proto::WorkerRecord& self, const FlowOptions& flow,
                           absl::Time now) {
  proto::PeerState out;
  out.set_name(peer.worker.name);
  out.set_id(peer.worker.id);
  out.set_incarnation(peer.worker.incarnation);
  const Peer::View view = peer.view();
  out.set_state(state_of(view.state));
  if (!view.lost_reason.ok()) out.set_reason(std::string(cut_name(view.lost_reason.message())));
  out.set_same_host(!peer.record.network().empty() && peer.record.network() == network_id());
  read_links(view, now, out);
  for (const auto& [transport, reason] : view.given_up) {
    proto::GivenUpTransport& entry = *out.add_given_up();
    entry.set_transport(transport);
    entry.set_reason(std::string(cut_name(reason.message())));
  }
  // The order of the addresses is that of the transports, best first.
  for (const proto::Address& address : self.addresses()) {
    if (std::any_of(peer.record.addresses().begin(), peer.record.addresses().end(),
                    [&](const auto& other) { return other.transport() == address.transport(); })) {
      out.add_transports(address.transport());
    }
  }
  const FlowWindow::Usage usage = peer.flow.usage();
  out.set_window_calls(usage.calls);
  out.set_window_bytes(usage.bytes);
  out.set_window_calls_limit(flow.max_calls);
  out.set_window_bytes_limit(flow.max_bytes);
  const FlowWindow::Queue queue = peer.flow.queue();
  out.set_window_waiting(queue.waiting);
  out.set_window_waits(queue.waited);
  return out;
}

}  // namespace

void read_peers(const Peers& peers, const FlowOptions& flow, uint32_t most, absl::Time now,
                proto::AgentState& state) {
  std::vector<proto::PeerState> all;
  // Not known before this worker is a member.
  const std::shared_ptr<Peer> own = peers.peer(state.incarnation());
  const proto::WorkerRecord self = own == nullptr ? proto::WorkerRecord() : own->record;
  for (const Worker& worker : peers.workers()) {
    if (const std::shared_ptr<Peer> peer = peers.peer(worker.incarnation)) {
      all.push_back(read_peer(*peer, self, flow, now));
    }
  }
  state.set_peers_total(all.size());
  state.set_members(static_cast<uint32_t>(std::count_if(all.begin(), all.end(), [](const auto& peer) {
    return peer.state() == proto::PeerState::ALIVE || peer.state() == proto::PeerState::SUSPECT;
  })));
  const auto rank = [](const proto::PeerState& peer) {
    return std::make_tuple(peer.state() == proto::PeerState::ALIVE, peer.window_waiting() == 0,
                           peer.links().empty(), peer.id());
  };
  std::sort(all.begin(), all.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  if (all.size() > most) all.resize(most);
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.id() < b.id(); });
  for (proto::PeerState& peer : all) *state.add_peers() = std::move(peer);
}

}  // namespace gradwire::rpc
