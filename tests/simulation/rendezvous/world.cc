#include "gradwire/tests/simulation/rendezvous/world.h"

#include <algorithm>

namespace gradwire::rendezvous_simulation {
namespace {

// Limit from the end of the faults until all nodes have settled: the sum of the timeouts and grace periods.
constexpr Time kSettleTimeout = 3 * kJoinTimeout + 2 * kStoreTimeout + 120 * kSecond;
constexpr Time kFinishTimeout = 120 * kSecond;
constexpr Time kCheckInterval = 5 * kSecond;
constexpr uint64_t kMaxSteps = 200'000;

}  // namespace

World::World(uint64_t seed, simulation::CoverageTable* coverage, simulation::Trace* trace)
    : random_(seed), scenario_(random_), coverage_(coverage), trace_(trace) {}

const std::string& World::run() {
  plan();
  while (!over_ && violation_.empty() && !scheduler_.empty()) {
    const Event event = scheduler_.take();
    now_ = event.time;
    if (++steps_ > kMaxSteps) violate("too many steps: the nodes do not settle");
    dispatch(event);
  }
  return violation_;
}

void World::plan() {
  for (std::size_t i = 0; i < scenario_.launchers.size(); ++i) {
    scheduler_.add(scenario_.launchers[i].start, Kind::kStart, 0, i);
  }
  const auto plan_faults = [this](Kind kind, int count, Time shortest, Time longest) {
    for (int i = 0; i < count; ++i) {
      scheduler_.add(random_.between(0, scenario_.calm - 1), kind, 0,
                     random_.between(shortest, longest) / kMillisecond);
    }
  };
  plan_faults(Kind::kCrash, scenario_.crashes, 0, 0);
  plan_faults(Kind::kPause, scenario_.pauses, kSecond, 90 * kSecond);
  plan_faults(Kind::kCut, scenario_.cuts, kSecond, 90 * kSecond);
  plan_faults(Kind::kLeave, scenario_.leaves, 0, 0);
  plan_faults(Kind::kFreeze, scenario_.freezes, 10 * kSecond, 90 * kSecond);
  plan_faults(Kind::kOutage, scenario_.outages, 10 * kSecond, kStoreTimeout - 20 * kSecond);
  scheduler_.add(scenario_.calm, Kind::kCalm);
}

void World::dispatch(const Event& event) {
  switch (event.kind) {
    case Kind::kStart:
      return start(static_cast<int>(event.arg));
    case Kind::kRequest:
      return serve(event.arg);
    case Kind::kPause:
    case Kind::kCut:
    case Kind::kLeave:
    case Kind::kCrash:
    case Kind::kFreeze:
    case Kind::kOutage:
      return fault(event);
    case Kind::kCalm:
      return become_calm();
    case Kind::kCheck:
      return check_settled();
    default:
      break;
  }
  SimNode& node = *nodes_[event.node];
  if (!node.alive) return;
  if (now_ < node.paused_until) {
    scheduler_.add(node.paused_until, event.kind, event.node, event.arg);
    return;
  }
  switch (event.kind) {
    case Kind::kDrive:
      return drive(node);
    case Kind::kAnswer:
      return receive(node, event.arg);
    case Kind::kGiveUp:
      return give_up(node, event.arg, /*failed=*/true);
    case Kind::kSlice:
      return give_up(node, event.arg, /*failed=*/false);
    case Kind::kUpdate:
      return on_update(node);
    default:
      return workers_event(node, event);
  }
}

void World::start(int launcher) {
  if (now_ < frozen_until_) return scheduler_.add(frozen_until_, Kind::kStart, 0, launcher);
  const Scenario::Launcher& plan = scenario_.launchers[launcher];
  auto node = std::make_unique<SimNode>();
  node->index = static_cast<int>(nodes_.size());
  node->launcher = launcher;
  node->rate = 1 + 0.001 * static_cast<double>(random_.between(-scenario_.skew, scenario_.skew));
  node->offset = absl::UnixEpoch() + absl::Seconds(random_.between(0, 1'000'000));
  rendezvous::Options options{
      .node_id = node->name(),
      .self = {.host = node->name(), .address = node->name(), .roles = {{.name = "w", .count = 1}}},
      .settings = scenario_.settings,
      .node_rank = plan.rank,
      .run_id = "job",
      .round_store = scenario_.round_store,
      .hosts_store = random_.below(4) == 0,
      .join_timeout = absl::Microseconds(kJoinTimeout),
      .last_call_timeout = absl::Microseconds(kLastCall),
      .keep_alive_interval = absl::Microseconds(kInterval),
      .keep_alive_max_attempt = kAttempts,
      .watched = scenario_.watched};
  if (plan.other_settings) options.settings.max_restarts += 1;
  if (options.settings.min_nodes == options.settings.max_nodes)
    options.last_call_timeout = absl::ZeroDuration();
  trace(node->name(), " starts");
  node->machine = std::make_unique<Machine>(std::move(options), local(*node));
  nodes_.push_back(std::move(node));
  drive(*nodes_.back());
}

void World::fault(const Event& event) {
  if (calm_) return;
  const Time until = now_ + Time{event.arg} * kMillisecond;
  if (event.kind == Kind::kFreeze) {
    trace("all nodes are paused for ", event.arg, " ms");
    frozen_until_ = std::max(frozen_until_, until);
    for (auto& node : nodes_) node->paused_until = std::max(node->paused_until, until);
    return;
  }
  if (event.kind == Kind::kOutage) {
    trace("the store cannot be reached for ", event.arg, " ms");
    outage_until_ = std::max(outage_until_, until);
    return;
  }
  SimNode* node = random_live();
  if (node == nullptr) return;
  if (event.kind == Kind::kCrash) {
    crash(*node);
  } else if (event.kind == Kind::kPause) {
    trace(node->name(), " is paused for ", event.arg, " ms");
    node->paused_until = std::max(node->paused_until, until);
  } else if (event.kind == Kind::kCut) {
    trace(node->name(), " is cut off for ", event.arg, " ms");
    node->cut_until = std::max(node->cut_until, until);
  } else {
    trace(node->name(), " is stopped by SIGTERM");
    report(*node, [](Machine& machine, absl::Time now) { machine.leave("was stopped by SIGTERM", now); });
  }
}

void World::crash(SimNode& node) {
  trace(node.name(), " crashes");
  node.alive = false;
  if (!random_.per_mille(scenario_.restarts)) return;
  const Time restart_time = now_ + random_.between(kSecond, 30 * kSecond);
  if (restart_time < scenario_.calm) scheduler_.add(restart_time, Kind::kStart, 0, node.launcher);
}

void World::become_calm() {
  trace("calm");
  calm_ = true;
  outage_until_ = 0;
  for (auto& node : nodes_) {
    node->cut_until = 0;
    // The events of a paused node are postponed to the end of its pause.
    deadline_ = std::max(deadline_, node->paused_until);
  }
  deadline_ = std::max({deadline_, frozen_until_, now_}) + kSettleTimeout;
  scheduler_.add(now_ + kCheckInterval, Kind::kCheck);
}

void World::check_settled() {
  const bool any_live =
      std::any_of(nodes_.begin(), nodes_.end(), [](const auto& node) { return node->live(); });
  if (!any_live && now_ >= frozen_until_) {
    over_ = true;
    return;
  }
  const std::string reason = unsettled();
  if (reason.empty() && !finishing_) {
    trace("settled");
    finishing_ = true;
    deadline_ = now_ + kFinishTimeout;
    for (auto& node : nodes_) {
      if (node->live() && node->workers) {
        scheduler_.add(now_ + random_.between(0, kSecond), Kind::kWorkersDone, node->index, *node->workers);
      }
    }
  } else if (now_ > deadline_) {
    return violate(finishing_ ? "the job does not end although its workers have ended" : reason);
  }
  scheduler_.add(now_ + kCheckInterval, Kind::kCheck);
}

SimNode* World::random_live() {
  std::vector<SimNode*> live;
  for (auto& node : nodes_) {
    if (node->live()) live.push_back(node.get());
  }
  return live.empty() ? nullptr : live[random_.below(live.size())];
}

absl::Time World::local(const SimNode& node) const {
  return node.offset + absl::Microseconds(static_cast<int64_t>(static_cast<double>(now_) * node.rate));
}

Time World::global(const SimNode& node, absl::Time time) const {
  if (time == absl::InfiniteFuture()) return now_ + 3600 * kSecond;
  const double passed = static_cast<double>(absl::ToInt64Microseconds(time - node.offset));
  return std::max(now_, static_cast<Time>(passed / node.rate) + 1);
}

}  // namespace gradwire::rendezvous_simulation
