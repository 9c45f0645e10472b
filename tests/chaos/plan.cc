#include "gradwire/tests/chaos/plan.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace chaos {

Plan make_plan(uint64_t seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15u + 1);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  Plan plan;
  plan.seed = seed;
  switch (below(3)) {
    case 0:
      plan.transports = {"shm"};
      break;
    case 1:
      plan.transports = {"tcp"};
      break;
    default:  // All transports, the default of RpcBackendOptions.
      break;
  }
  plan.steps = 8 + below(20);
  // A third of the runs have no faults of transports, a third have one kind of fault, a third have all kinds.
  const int faults = below(6);
  if (faults == 2 || faults >= 4) plan.lose = 0.005 * (1 + below(10));
  if (faults == 3 || faults >= 4) plan.cut = 0.002 * (1 + below(5));
  if (faults >= 4) plan.delay = 0.02 * below(5);

  std::vector<int> victims(Plan::kWorkers);
  for (int worker = 0; worker < Plan::kWorkers; ++worker) victims[worker] = worker;
  std::shuffle(victims.begin(), victims.end(), random);
  const int kills = below(3);
  for (int i = 0; i < kills; ++i) {
    Plan::Kill kill;
    kill.worker = victims[i];
    const int when = below(16);
    kill.when = when < 8    ? Plan::Kill::When::kAtTime
                : when < 13 ? Plan::Kill::When::kAtMessage
                : when < 15 ? Plan::Kill::When::kInShutdown
                            : Plan::Kill::When::kInInit;
    kill.at = absl::Milliseconds(below(250));
    if (kill.when == Plan::Kill::When::kInInit) {
      kill.at = absl::Milliseconds(below(60));
      plan.join_timeout = absl::Seconds(2);
    }
    kill.message = below(150);
    plan.kills.push_back(kill);
  }
  const int pauses = below(3);
  for (int i = 0; i < pauses; ++i) {
    plan.pauses.push_back(
        {below(Plan::kWorkers), absl::Milliseconds(below(250)), absl::Milliseconds(10 + below(250))});
  }
  plan.graceful = below(2) == 0;
  const bool in_init = std::any_of(plan.kills.begin(), plan.kills.end(), [](const Plan::Kill& kill) {
    return kill.when == Plan::Kill::When::kInInit;
  });
  if (const int fault = below(12); fault < 3 && !in_init) {
    using What = Plan::StoreFault::What;
    constexpr What kWhat[] = {What::kPause, What::kKill, What::kRestart};
    plan.store = {kWhat[fault], absl::Milliseconds(below(250)), absl::Milliseconds(below(400))};
  }
  const bool calm = !plan.faulty() && plan.kills.empty() && plan.store.what == Plan::StoreFault::What::kNone;
  if (calm && below(2) == 0) {
    plan.pauses.clear();
    plan.long_pause = {below(Plan::kWorkers), absl::Milliseconds(below(250)),
                       Plan::kDeadAfterOfLongPause * (below(2) == 0 ? 0.5 : 1.75)};
  }
  return plan;
}

std::string Plan::to_string() const {
  std::vector<std::string> events;
  for (const Kill& kill : kills) {
    switch (kill.when) {
      case Kill::When::kInInit:
        events.push_back(
            absl::StrCat("kill ", kill.worker, " ", absl::FormatDuration(kill.at), " after its start"));
        break;
      case Kill::When::kAtTime:
        events.push_back(absl::StrCat("kill ", kill.worker, " at ", absl::FormatDuration(kill.at)));
        break;
      case Kill::When::kAtMessage:
        events.push_back(absl::StrCat("kill ", kill.worker, " at message ", kill.message));
        break;
      case Kill::When::kInShutdown:
        events.push_back(absl::StrCat("kill ", kill.worker, " in the shutdown"));
        break;
    }
  }
  for (const Pause& pause : pauses) {
    events.push_back(absl::StrCat("pause ", pause.worker, " at ", absl::FormatDuration(pause.at), " for ",
                                  absl::FormatDuration(pause.length)));
  }
  if (long_pause) {
    events.push_back(absl::StrCat("pause ", long_pause->worker, " at ", absl::FormatDuration(long_pause->at),
                                  " for ", absl::FormatDuration(long_pause->length)));
  }
  switch (store.what) {
    case StoreFault::What::kNone:
      break;
    case StoreFault::What::kPause:
      events.push_back(absl::StrCat("pause the store at ", absl::FormatDuration(store.at), " for ",
                                    absl::FormatDuration(store.length)));
      break;
    case StoreFault::What::kKill:
      events.push_back(absl::StrCat("kill the store at ", absl::FormatDuration(store.at)));
      break;
    case StoreFault::What::kRestart:
      events.push_back(absl::StrCat("kill the store at ", absl::FormatDuration(store.at), ", start it again ",
                                    absl::FormatDuration(store.length), " later"));
      break;
  }
  return absl::StrCat("transports ", transports.empty() ? "all" : absl::StrJoin(transports, ","), ", lose ",
                      lose, ", cut ", cut, ", delay ", delay, ", ", steps, " steps, ",
                      events.empty() ? "no kill or pause" : absl::StrJoin(events, ", "),
                      graceful ? ", graceful shutdown" : ", shutdown not graceful");
}

std::string worker_name(int worker) { return absl::StrCat("worker", worker); }

}  // namespace chaos
