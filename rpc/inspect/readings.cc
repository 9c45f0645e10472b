#include "gradwire/rpc/inspect/readings.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/process/host.h"
#include "gradwire/collectives/flight/flight_recorder.h"
#include "gradwire/collectives/flight/group_records.h"
#include "gradwire/rpc/flight/call_parent.h"
#include "gradwire/rpc/flight/call_report.h"
#include "gradwire/rpc/inspect/limits.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/registry/server_call.h"
#include "gradwire/rpc/rref/reference_driver.h"

namespace gradwire::rpc {
namespace {

using Functions = HashMap<std::string, proto::FunctionState>;

void to_proto(const CallIdentity& identity, proto::CallIdentity& out) {
  out.set_caller(identity.caller);
  out.set_call_id(identity.number);
}

void describe(const CallReport& call, absl::Time now, proto::CallSummary& out) {
  to_proto(call.identity, *out.mutable_identity());
  out.set_callee(std::string(cut_name(call.callee)));
  out.set_peer(call.peer);
  out.set_age_us(std::max<int64_t>(0, absl::ToInt64Microseconds(now - call.since)));
  out.set_left_us(call.deadline == absl::InfiniteFuture()
                      ? -1
                      : std::max<int64_t>(0, absl::ToInt64Microseconds(call.deadline - now)));
  out.set_stage(static_cast<proto::CallSummary::Stage>(call.state));
  if (call.parent) to_proto(call.parent, *out.mutable_parent());
}

// Moves the `most` oldest calls to the front, in order, and drops the others.
void keep_oldest(std::vector<CallReport>& calls, uint32_t most) {
  const auto older = [](const CallReport& a, const CallReport& b) { return a.since < b.since; };
  const std::size_t kept = std::min<std::size_t>(most, calls.size());
  std::partial_sort(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(kept), calls.end(), older);
  calls.erase(calls.begin() + static_cast<std::ptrdiff_t>(kept), calls.end());
}

void count(const std::vector<CallReport>& calls, absl::Time now,
           uint64_t (proto::FunctionState::*get)() const, void (proto::FunctionState::*set)(uint64_t),
           Functions& functions) {
  for (const CallReport& call : calls) {
    proto::FunctionState& function = functions[call.callee];
    (function.*set)((function.*get)() + 1);
    const int64_t age = std::max<int64_t>(0, absl::ToInt64Microseconds(now - call.since));
    function.set_oldest_us(std::max(function.oldest_us(), age));
  }
}

void read_functions(Functions functions, uint32_t most, proto::AgentState& state) {
  std::vector<std::pair<std::string, proto::FunctionState>> sorted(functions.begin(), functions.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    const uint64_t calls_a = a.second.pending() + a.second.served();
    const uint64_t calls_b = b.second.pending() + b.second.served();
    return calls_a != calls_b ? calls_a > calls_b : a.first < b.first;
  });
  if (sorted.size() > most) sorted.resize(most);
  for (auto& [name, function] : sorted) {
    function.set_callee(std::string(cut_name(name)));
    *state.add_functions() = std::move(function);
  }
}

}  // namespace

void read_calls(OpenCalls calls, const TurnWaits& turns, uint32_t most, absl::Time now,
                proto::AgentState& state) {
  std::vector<CallReport>& made = calls.made;
  std::vector<CallReport>& served = calls.served;
  find_nested(made, served);
  const std::size_t all = made.size();
  std::erase_if(made, [](const CallReport& call) { return call.is_service; });
  state.set_pending_services(all - made.size());
  state.set_pending_total(made.size());
  state.set_served_total(served.size());
  Functions functions;
  count(made, now, &proto::FunctionState::pending, &proto::FunctionState::set_pending, functions);
  count(served, now, &proto::FunctionState::served, &proto::FunctionState::set_served, functions);
  read_functions(std::move(functions), most, state);
  keep_oldest(made, most);
  for (const CallReport& call : made) describe(call, now, *state.add_pending());
  keep_oldest(served, most);
  HashMap<CallIdentity, TurnWaits::Holder> holders;
  for (TurnWaits::Wait& wait : turns.waits()) {
    holders.insert_or_assign(wait.waiter, std::move(wait.holder));
  }
  for (const CallReport& call : served) {
    proto::CallSummary& out = *state.add_served();
    describe(call, now, out);
    const auto holder = holders.find(call.identity);
    if (holder == holders.end()) continue;
    to_proto(holder->second.call, *out.mutable_waits_for());
    out.set_waits_for_callee(std::string(cut_name(holder->second.callee)));
  }
}

namespace {

constexpr char kReason[] = "an observer has asked";
// The names of workers are only in the first part, and take at most this part of it.
constexpr std::size_t kMaxMemberBytes = kMaxFlightBytes / 2;

// FlightQuestion.since_us in nanoseconds.
int64_t since_of(const proto::FlightQuestion& question) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 1000;
  return std::clamp<int64_t>(question.since_us(), 0, kMost) * 1000;
}

void add(std::string& lines, JsonLine line) { absl::StrAppend(&lines, line.end(), "\n"); }

// 1. The first part has the header and the workers.
// 2. Then all events follow from the wanted one on, until the part is full or kMostVisited were visited.
// Those
//    that had ended before the period are left out.
void read_events(const AgentRuntime& runtime, const Peers& peers, const proto::FlightQuestion& question,
                 proto::FlightPart& part) {
  const CallRecorder& recorder = *runtime.recorder;
  const uint64_t end = recorder.next();
  const uint64_t first = recorder.first();
  const int64_t since = since_of(question);
  std::string& lines = *part.mutable_lines();
  part.set_recorded(end);
  if (question.from() == 0) {
    add(lines, agent_header(runtime.self, recorder, end, kReason, FlightDump::kOrdinary));
    for (const Worker& member : peers.workers()) {
      if (lines.size() < kMaxMemberBytes) add(lines, member_line(member));
    }
  }
  const uint64_t wanted = std::max(question.from(), question.begun());
  part.set_missing(first - std::min(first, wanted));
  uint64_t record = std::max(question.from(), first);
  // A question for a period that has not begun, for example, leaves out all records: it must not visit them
  // all at once.
  const uint64_t stop = end - std::min(end, record) > kMostVisited ? record + kMostVisited : end;
  for (; record < stop && lines.size() + JsonLine::kSize < kMaxFlightBytes; ++record) {
    CallEvent event;
    if (!recorder.read(record, event) || (event.over() && event.ended < since)) continue;
    add(lines, event_line(event, runtime.self.incarnation));
  }
  if (record < end) part.set_next(record);
}

// Keeps the header, and the newest lines of the period that fit.
class GroupSink : public FlightSink {
 public:
  explicit GroupSink(int64_t since) : since_(since) {}
  void line(absl::string_view json, bool open) override {
    if (header_.empty()) {
      header_ = absl::StrCat(json, "\n");
      return;
    }
    const bool before = !open && end_of(json) < since_;
    reaches_back_ = reaches_back_ || before;
    if (before) return;
    lines_.push_back(absl::StrCat(json, "\n"));
    bytes_ += lines_.back().size();
    while (header_.size() + bytes_ > kMaxFlightBytes) {
      bytes_ -= lines_.front().size();
      lines_.pop_front();
      ++dropped_;
    }
  }
  void write(proto::FlightPart& part) const {
    part.set_lines(header_);
    for (const std::string& line : lines_) part.mutable_lines()->append(line);
    part.set_missing(dropped_);
    part.set_overwritten(!reaches_back_);
  }

 private:
  // The texts of a line have no quotes that are not escaped, so this is the key.
  static int64_t end_of(absl::string_view json) {
    constexpr absl::string_view kKey = ",\"ended\":";
    constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
    const std::size_t at = json.rfind(kKey);
    if (at == json.npos) return kNever;
    absl::string_view number = json.substr(at + kKey.size());
    number = number.substr(0, number.find_first_not_of("0123456789"));
    int64_t time = 0;
    return absl::SimpleAtoi(number, &time) ? time : kNever;
  }

  const int64_t since_;
  std::string header_;
  std::deque<std::string> lines_;
  std::size_t bytes_ = 0;
  uint64_t dropped_ = 0;
  // Whether the ring has a record from before the period.
  bool reaches_back_ = false;
};

}  // namespace

void read_flight(const AgentRuntime& runtime, const Peers& peers, const proto::FlightQuestion& question,
                 proto::FlightPart& part) {
  if (question.group() == 0) return read_events(runtime, peers, question, part);
  GroupSink sink(since_of(question));
  part.set_group(collectives::write_group_record(question.group(), sink, kReason));
  sink.write(part);
}

namespace {

using collectives::FlightRecorder;

void describe(const FlightRecorder::Seen& seen, proto::CollectiveState& out) {
  out.set_operation(std::string(collectives::name_of(seen.operation)));
  out.set_sequence(seen.sequence == FlightRecorder::kNoSequence ? -1 : static_cast<int64_t>(seen.sequence));
  out.set_state(static_cast<proto::CollectiveState::State>(seen.state));
  out.set_age_us(absl::ToInt64Microseconds(seen.age));
  out.set_peer(seen.peer);
}

}  // namespace

void read_groups(uint32_t most, proto::AgentState& state) {
  const FlightRecorder::Views views = FlightRecorder::view_all(most);
  state.set_groups_total(views.total);
  for (const FlightRecorder::View& view : views.recorders) {
    proto::ProcessGroupState& group = *state.add_groups();
    group.set_title(std::string(cut_name(view.title)));
    group.set_recorded(view.recorded);
    if (view.last) describe(*view.last, *group.mutable_last());
    if (view.oldest_open) describe(*view.oldest_open, *group.mutable_oldest());
  }
}

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

namespace {

struct Group {
  uint64_t count = 0;
  absl::Time oldest = absl::InfiniteFuture();
  bool holder_lost = false;
};
// By type, which may be nullptr, and holder.
using Groups = HashMap<std::pair<const TypeOps*, uint64_t>, Group>;
using Owners = HashMap<uint64_t, uint64_t>;

// Runs with the driver's lock held.
bool group_owned(const ReferenceDriver::Tables& tables, Groups& groups) {
  std::size_t visited = 0;
  tables.references.owner().each_holder([&](const Id& rref, uint64_t holder, bool lost) {
    const auto slot = tables.values.find(rref);
    const bool made =
        slot != tables.values.end() && slot->second.value.has_value() && slot->second.value->ok();
    Group& group = groups[{made ? (*slot->second.value)->type : nullptr, holder}];
    ++group.count;
    if (slot != tables.values.end()) group.oldest = std::min(group.oldest, slot->second.since);
    group.holder_lost |= lost;
    return ++visited < kMostVisited;
  });
  return visited >= kMostVisited;
}

bool group_held(const ReferenceDriver::Tables& tables, Owners& owners) {
  std::size_t visited = 0;
  tables.references.holder().each_owner([&](uint64_t owner) {
    ++owners[owner];
    return ++visited < kMostVisited;
  });
  return visited >= kMostVisited;
}

}  // namespace

void read_rrefs(const ReferenceDriver& driver, uint32_t most, absl::Time now, proto::AgentState& state) {
  Groups groups;
  Owners owners;
  bool partial = false;
  driver.view([&](const ReferenceDriver::Tables& tables) {
    state.set_rrefs_total(tables.references.owner().size());
    partial = group_owned(tables, groups);
    partial |= group_held(tables, owners);
  });
  if (partial) state.set_partial(true);
  std::vector<proto::RRefState> rrefs;
  for (const auto& [key, group] : groups) {
    proto::RRefState& entry = rrefs.emplace_back();
    if (key.first != nullptr) entry.set_type(std::string(cut_name(key.first->name())));
    entry.set_holder(key.second);
    entry.set_count(group.count);
    entry.set_oldest_us(
        group.oldest == absl::InfiniteFuture() ? -1 : absl::ToInt64Microseconds(now - group.oldest));
    entry.set_holder_lost(group.holder_lost);
  }
  std::sort(rrefs.begin(), rrefs.end(), [](const auto& a, const auto& b) {
    return std::make_tuple(b.count(), a.type(), a.holder()) <
           std::make_tuple(a.count(), b.type(), b.holder());
  });
  if (rrefs.size() > most) rrefs.resize(most);
  for (proto::RRefState& entry : rrefs) *state.add_rrefs() = std::move(entry);
  std::vector<std::pair<uint64_t, uint64_t>> held(owners.begin(), owners.end());
  std::sort(held.begin(), held.end(), [](const auto& a, const auto& b) {
    return std::make_pair(b.second, a.first) < std::make_pair(a.second, b.first);
  });
  if (held.size() > most) held.resize(most);
  for (const auto& [owner, count] : held) {
    proto::HeldState& entry = *state.add_held();
    entry.set_owner(owner);
    entry.set_count(count);
  }
}

}  // namespace gradwire::rpc
