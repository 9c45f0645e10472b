#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/tests/chaos/plan.h"
#include "gradwire/tests/chaos/stall_watch.h"
#include "gradwire/tests/chaos/store_host.h"
#include "gradwire/tests/chaos/worker_process.h"

namespace chaos {

// What went wrong in a run, and some figures of it.
struct RunReport {
  std::vector<std::string> failures;
  int calls = 0;
  int failed_calls = 0;
  int killed = 0;
  // Calls that were made again; how often a worker found another one suspect.
  int64_t repeated = 0;
  int64_t suspected = 0;
  // What happened to the store; workers that were paused for so long that they were dead.
  int store_faults = 0;
  int outcasts = 0;
  // Calls that must not run out of time (Plan::patient).
  int64_t patient_calls = 0;
  // The longest any call took beyond its deadline, any worker's tables needed to become empty, and any
  // shutdown took.
  absl::Duration overrun = -absl::InfiniteDuration();
  absl::Duration emptying;
  absl::Duration shutdown;
  absl::Duration duration;
  // In which the machine stood still; not in the figures above.
  absl::Duration stalled;
};

// One run of one plan: starts the workers, kills and pauses them, leads the survivors to the end, and checks
// what they wrote down.
class ChaosRun {
 public:
  struct Options {
    std::string worker_program;
    // For the runs in which something happens to it; the others share one.
    std::string store_program;
    int store_port = 0;
    // Exists and is empty: for the workers' logs.
    std::string directory;
    // See Faults.
    bool lose_services = false;
    StallWatch* stalls = nullptr;
  };
  ChaosRun(Plan plan, Options options);

  RunReport run();

 private:
  struct Event {
    absl::Duration at;
    std::function<void()> happens;
  };

  void fail(int worker, const std::string& what);
  std::string name(int worker) const { return worker_name(worker); }
  // Whether the plan kills the worker; whether it kills anybody then.
  bool planned(int worker) const;
  bool planned(Plan::Kill::When when) const;
  Event signal_at(absl::Duration at, int worker, int signal);
  // What happens to the store.
  std::vector<Event> store_events();
  // After a long pause: all agree on who is dead, which ends its part of the run. False when that failed.
  bool part_from_outcast();
  std::set<int> dead() const;
  // Waits until every living worker has said a line that begins with `word`, and lets `events` happen.
  // Of those set aside only the census is expected. False when that failed.
  bool gather(const std::string& word, absl::Duration limit, std::vector<Event> events = {});
  void take_line(int worker, const std::string& line, const std::string& word);
  // Whether a worker may say that its shutdown ended with this.
  bool may_end_with(int worker, absl::StatusCode code, const std::string& message) const;
  // Whether a worker ended as it was to.
  void reap(int worker);
  void tell(const std::string& line);
  // How long the machine has stood still since the run began.
  absl::Duration stalled() const { return options_.stalls->since(start_us_); }
  void check_calls();
  void check_end();

  const Plan plan_;
  const Options options_;
  RunReport report_;
  std::unique_ptr<StoreHost> store_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
  // By signal, and not only planned.
  std::set<int> killed_;
  std::vector<absl::Duration> paused_;
  std::set<int> said_;
  // Have no part in what follows but the census: could not join, because another was killed, or are outcasts.
  std::set<int> aside_;
  int64_t start_us_ = 0;
};

}  // namespace chaos
