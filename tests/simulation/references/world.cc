#include "gradwire/tests/simulation/references/world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gradwire::references_simulation {

using EventKind = Event::Kind;

namespace {

// Far more events than any schedule needs. A schedule with more events is a livelock.
constexpr uint64_t kMaxSteps = 50'000;
// Time between the last action and the healing of all faults.
constexpr Time kAftermath = 200'000;
// The group must become quiet within this time.
constexpr Time kQuietWithin = 5'000'000;

// Whether the thread that reads the connections handles the event. The ticks of the failure detector run
// behind what it reads (rpc/link/heartbeat_monitor.cc).
bool is_read(EventKind kind) {
  return kind == EventKind::kDeliver || kind == EventKind::kBroken || kind == EventKind::kProbed ||
         kind == EventKind::kTick;
}

}  // namespace

World::World(uint64_t seed, simulation::CoverageTable* coverage, simulation::Trace* trace)
    : random_(seed), scenario_(random_), coverage_(coverage), trace_(trace) {
  nodes_.reserve(kMaxWorkers);
  rref_index_.reserve(256);
}

Node& World::add_node(std::string name, int32_t wanted_id) {
  nodes_.push_back(std::make_unique<Node>(static_cast<int>(nodes_.size()), std::move(name), wanted_id,
                                          rpc::ReferenceBounds{.forks = scenario_.max_given}));
  return *nodes_.back();
}

const std::string& World::run() {
  plan();
  const Time until = scenario_.span + kAftermath;
  while (violation_.empty() && !scheduler_.empty() && scheduler_.pending() > 0 && now_ < until) {
    if (!step()) break;
  }
  if (violation_.empty()) heal();
  if (violation_.empty()) run_until_quiet("after all faults were healed");
  if (violation_.empty()) check_healed();
  for (std::size_t i = 0; i < nodes_.size() && violation_.empty(); ++i) {
    Node& node = *nodes_[i];
    if (!node.running) continue;
    while (violation_.empty() && !node.handles.empty()) release(node, node.handles.back().number);
  }
  if (violation_.empty()) run_until_quiet("after the last handle was released");
  if (violation_.empty()) check_empty();
  return violation_;
}

void World::plan() {
  for (int i = 0; i < scenario_.workers; ++i) {
    Node& node = add_node(absl::StrCat("n", i), scenario_.open ? -1 : i);
    rpc::RosterEntry entry;
    entry.worker = {node.name, node.wanted_id, node.incarnation};
    entry.world_size = scenario_.open ? 0 : scenario_.workers;
    append_to_log(entry);
  }
  for (const auto& node : nodes_) follow(*node);

  // Two thirds of the user actions happen close to a fault.
  std::vector<Time> fault_times;
  auto fault = [&](EventKind kind, int times, int b = 0, Time shortest = 0, Time longest = 0) {
    for (int i = 0; i < times; ++i) {
      const Time at = random_.between(0, scenario_.long_faults ? scenario_.span / 3 : scenario_.span);
      const Time duration = longest > 0 ? random_.between(shortest, longest) : 0;
      scheduler_.add(at, kind, 0, b, static_cast<uint32_t>(duration));
      fault_times.push_back(at);
      if (duration > kDeadAfter) fault_times.push_back(at + kDeadAfter);
      if (duration > 0) fault_times.push_back(at + duration);
    }
  };
  const Time shortest = scenario_.long_faults ? kDeadAfter + 2 * kInterval : 1000;
  const Time longest = scenario_.long_faults ? kDeadAfter + 5 * kInterval : 120'000;
  fault(EventKind::kCrash, scenario_.crashes);
  fault(EventKind::kJoin, scenario_.joins);
  fault(EventKind::kLeave, scenario_.leaves);
  fault(EventKind::kPause, scenario_.pauses, 0, shortest, longest);
  fault(EventKind::kStall, scenario_.stalls, 0, shortest, longest);
  for (int i = 0; i < scenario_.cuts; ++i) {
    const int kind = static_cast<int>(random_.below(4));
    fault(EventKind::kCut, 1,
          kind == 0                      ? kAll
          : kind == 1 && scenario_.store ? kStore
                                         : 0,
          shortest, longest);
  }
  if (scenario_.store_loss) {
    scheduler_.add(random_.between(0, scenario_.span / 4), EventKind::kLoseStore, 0, 0,
                   scenario_.store_loss_of_all ? 1 : 0);
  }
  for (int i = 0; i < scenario_.actions; ++i) {
    Time at = random_.between(0, scenario_.span);
    if (!fault_times.empty() && random_.below(3) != 0) {
      at = fault_times[random_.below(fault_times.size())] + random_.between(-15'000, 25'000);
    }
    scheduler_.add(std::max<Time>(at, 0), EventKind::kAct);
  }
}

bool World::step() {
  const Event event = scheduler_.take();
  now_ = std::max(now_, event.time);
  if (event.kind != EventKind::kTick) ++steps_;
  if (steps_ > kMaxSteps) {
    violate("the schedule does not end");
    return false;
  }
  dispatch(event);
  return true;
}

void World::dispatch(const Event& event) {
  const bool picks_node = event.kind == EventKind::kAct || event.kind == EventKind::kCrash ||
                          event.kind == EventKind::kJoin || event.kind == EventKind::kLeave ||
                          event.kind == EventKind::kPause || event.kind == EventKind::kStall ||
                          event.kind == EventKind::kCut || event.kind == EventKind::kLoseStore ||
                          event.kind == EventKind::kRestart;
  const int actor = event.kind == EventKind::kDeliver ? network_.at(event.arg).to : event.a;
  if (!picks_node) {
    Node& node = *nodes_[actor];
    Time until = node.paused_until;
    if (is_read(event.kind)) until = std::max(until, node.reader_until);
    if (until > now_ && node.running) {
      // The node handles its events when it runs again, in random order.
      const Time at = until + random_.between(0, 2000);
      if (event.kind == EventKind::kTick) {
        if (event.time != node.next_tick) return;
        node.next_tick = at;
      }
      scheduler_.add(at, event.kind, event.a, event.b, event.arg);
      return;
    }
    if (!node.running && event.kind != EventKind::kDeliver) return;
  }
  switch (event.kind) {
    case EventKind::kDeliver:
      return deliver(event.arg);
    case EventKind::kAct:
      return act();
    case EventKind::kRetry:
      return retry(*nodes_[event.a]);
    case EventKind::kTick:
      if (event.time == nodes_[event.a]->next_tick) tick(*nodes_[event.a]);
      return;
    case EventKind::kFollow:
      return follow(*nodes_[event.a]);
    case EventKind::kAppend:
      return try_append(*nodes_[event.a], event.arg);
    case EventKind::kProbed:
      return probed(*nodes_[event.a], *nodes_[event.b]);
    case EventKind::kBroken: {
      Node& node = *nodes_[event.a];
      const uint64_t peer = nodes_[event.b]->incarnation;
      if (network_.linked(event.a, event.b) || node.references.peers().is_lost(peer)) return;
      cover(Machine::kWatched, static_cast<int>(node.detector.state(peer)), Coverage::kDisconnected);
      rpc::FailureDetector::Actions actions;
      node.detector.disconnected(peer, absl::UnixEpoch() + absl::Microseconds(now_), actions);
      return process(node, actions);
    }
    case EventKind::kGoesOn:
      return go_on(*nodes_[event.a]);
    case EventKind::kEndCreation:
      return end_creation(*nodes_[event.a], {nodes_[event.a]->incarnation, event.arg}, true);
    case EventKind::kEndOwnCreation:
      return end_own_creation(*nodes_[event.a], {nodes_[event.a]->incarnation, event.arg});
    default:
      break;
  }
  // The remaining events are faults. The affected node is chosen when the fault occurs.
  Node* node = random_member();
  if (calm_) return;
  switch (event.kind) {
    case EventKind::kCrash: {
      int running = 0;
      for (const auto& other : nodes_) running += other->running ? 1 : 0;
      if (node == nullptr || running < 2) return;
      stop(*node, "crashes");
      for (int i = 0; i < 2 && scenario_.restarts > 0; ++i) {
        // Sometimes a worker is restarted twice at the same time, by mistake.
        if (i == 0 || random_.below(6) == 0) {
          scheduler_.add(now_ + random_.between(1000, 60'000), EventKind::kRestart, node->index);
        }
      }
      return;
    }
    case EventKind::kRestart:
      return restart(nodes_[event.a]->name, nodes_[event.a]->wanted_id);
    case EventKind::kJoin:
      if (scenario_.open) restart(absl::StrCat("n", nodes_.size()), -1);
      return;
    case EventKind::kLeave:
      if (node == nullptr || node->leaving || truth_.members().size() < 2) return;
      if (trace_) trace_->line(now_, node_name(node->index), " leaves");
      node->leaving = true;
      return request(*node,
                     {.kind = rpc::RosterEntry::Kind::kLeave, .worker = {.incarnation = node->incarnation}},
                     false);
    case EventKind::kPause:
      if (node != nullptr) pause(*node, event.arg);
      return;
    case EventKind::kStall:
      if (node != nullptr && node->reader_until <= now_) stall(*node, event.arg);
      return;
    case EventKind::kCut: {
      if (node == nullptr) return;
      if (event.b == kAll || event.b == kStore) return cut(node->index, event.b, event.arg);
      Node* other = random_member();
      if (other != nullptr && other != node) cut(node->index, other->index, event.arg);
      return;
    }
    case EventKind::kLoseStore:
      for (const auto& other : nodes_) {
        if (other->running && (event.arg == 1 || other.get() == node)) lose_store(*other);
      }
      return;
    default:
      return;
  }
}

Node* World::random_member() {
  // Trying a few random nodes is cheaper than building a list of all candidates.
  for (int i = 0; i < 6; ++i) {
    Node& node = *nodes_[random_.below(nodes_.size())];
    if (node.running && node.member && node.paused_until <= now_) return &node;
  }
  return nullptr;
}

Time World::some_delay() {
  if (!calm_ && random_.per_mille(scenario_.long_delays)) return random_.between(100, scenario_.long_delay);
  return random_.between(50, scenario_.delay);
}

void World::run_until_quiet(const char* phase) {
  const Time until = now_ + kQuietWithin;
  while (violation_.empty()) {
    if (scheduler_.pending() == 0) {
      const bool connected = connect_all();
      const std::string reason = unsettled_reason();
      if (reason.empty() && connected) return;
      if (!connected && now_ < until) {
        if (!step()) return;
        continue;
      }
      if (scheduler_.empty() || now_ > until) return violate(absl::StrCat("not quiet ", phase, ": ", reason));
    } else if (now_ > until) {
      return violate(absl::StrCat("not quiet ", phase, ": ", unsettled_reason()));
    }
    if (!step()) return;
  }
}

std::string World::unsettled_reason() const {
  // If no node runs, no node can detect a death.
  if (std::none_of(nodes_.begin(), nodes_.end(), [](const auto& node) { return node->running; })) return "";
  for (const auto& node : nodes_) {
    if (!node->running) {
      if (truth_.status(node->incarnation) == rpc::Roster::Status::kMember && scenario_.store) {
        return absl::StrCat("no worker declared ", node_name(node->index), " dead");
      }
      continue;
    }
    const std::string name = node_name(node->index);
    if (node->roster.position() != log_.size()) return absl::StrCat(name, " is behind the log");
    if (node->references.peers().unacknowledged() > 0) return absl::StrCat(name, " has unanswered messages");
    // Without the log the group cannot agree on a death, so a fence never ends.
    if (node->references.fences().due() && scenario_.store) return absl::StrCat(name, " waits for a fence");
    if (node->references.fences().unanswered() > 0) return absl::StrCat(name, " has not answered fences");
    for (const auto& other : nodes_) {
      if (!other->running && node->roster.status(other->incarnation) == rpc::Roster::Status::kMember &&
          !node->references.peers().is_lost(other->incarnation)) {
        return absl::StrCat(name, " does not know that ", node_name(other->index), " is dead");
      }
      if (node->detector.state(other->incarnation) == rpc::FailureDetector::State::kSuspect) {
        return absl::StrCat(name, " suspects ", node_name(other->index));
      }
    }
  }
  return "";
}

}  // namespace gradwire::references_simulation
