#include <optional>

#include "gradwire/rpc/link/departures_codec.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peers.h"

// What Peers counts of what was sent and read, and what it says of it (proto/rpc.proto, "What has arrived").
namespace gradwire::rpc {

void Peers::count_read(Link& link, const Peer& peer) {
  // In this order, both sequentially consistent: require() sets `unsettled` and then reads the counter, so that one of
  // the two sees the other.
  link.read_->fetch_add(1);
  if (!peer.unsettled.load()) return;
  bool settled = false;
  {
    MutexLock lock(mutex_);
    if (link.peer_ != nullptr) settled = settles_locked(*link.peer_);
  }
  if (settled) sink_.on_settled(peer.worker);
}

void Peers::note_heartbeat(const Peer& peer, const proto::Heartbeat& heartbeat) {
  const std::optional<Departures> sent = from_proto(heartbeat.sent());
  if (!sent) return;
  bool settled = false;
  {
    MutexLock lock(mutex_);
    auto found = by_incarnation_.find(peer.worker.incarnation);
    if (found == by_incarnation_.end()) return;
    found->second->arrivals.told(*sent);
    settled = settles_locked(*found->second);
  }
  if (settled) sink_.on_settled(peer.worker);
}

bool Peers::settles_locked(Peer& peer) {
  if (!peer.unsettled.load() || !peer.arrivals.settled()) return false;
  peer.unsettled = false;
  return true;
}

Departures Peers::departures_locked(const Peer& peer) const {
  Departures sent{peer.last_number, {}};
  for (const std::shared_ptr<Link>& link : peer.numbered) {
    sent.open.push_back({link->departs_as_, link->departed_.load()});
  }
  return sent;
}

Departures Peers::departures(uint64_t incarnation) const {
  MutexLock lock(mutex_);
  auto found = by_incarnation_.find(incarnation);
  return found == by_incarnation_.end() ? Departures() : departures_locked(*found->second);
}

bool Peers::require(uint64_t incarnation, const Departures& sent) {
  MutexLock lock(mutex_);
  auto found = by_incarnation_.find(incarnation);
  if (found == by_incarnation_.end()) return false;
  Peer& peer = *found->second;
  peer.unsettled = true;
  const bool settled = peer.arrivals.require(sent);
  if (settled) peer.unsettled = false;
  return settled;
}

bool Peers::settled(uint64_t incarnation) {
  MutexLock lock(mutex_);
  auto found = by_incarnation_.find(incarnation);
  return found != by_incarnation_.end() && found->second->arrivals.settled();
}

}  // namespace gradwire::rpc
