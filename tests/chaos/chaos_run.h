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

// The failures and the figures of a run.
struct RunReport {
  std::vector<std::string> failures;
  int calls = 0;
  int failed_calls = 0;
  int killed = 0;
  // Number of repeated calls, and how often a worker regarded another one as suspect.
  int64_t repeated = 0;
  int64_t suspected = 0;
  // Number of faults of the store, and of outcasts (Plan::outcast).
  int store_faults = 0;
  int outcasts = 0;
  // Number of calls that must not exceed their deadlines (Plan::undelayed).
  int64_t undelayed_calls = 0;
  // The longest times: from a call's deadline to its end, until a worker's tables were empty, and of a
  // shutdown.
  absl::Duration overrun = -absl::InfiniteDuration();
  absl::Duration emptying;
  absl::Duration shutdown;
  absl::Duration duration;
  // How long the machine stood still. The figures above do not include it.
  absl::Duration stalled;
};

// One run of one plan. Starts the workers, kills and pauses them, shuts the survivors down, and checks the
// logs of their calls.
class ChaosRun {
 public:
  struct Options {
    std::string worker_program;
    // Started for a run with a fault of the store. All other runs share the store at `store_port`.
    std::string store_program;
    int store_port = 0;
    // For the logs of the workers. Must exist and be empty.
    std::string directory;
    // Lose messages of services, too (faults.h).
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
  // Whether the plan kills the worker; whether it kills any worker at that time.
  bool planned(int worker) const;
  bool planned(Plan::Kill::When when) const;
  Event signal_at(absl::Duration at, int worker, int signal);
  // Returns the faults of the store.
  std::vector<Event> store_events();
  // After a long pause: checks that all workers agree on who is dead, and shuts the outcast down. Returns
  // false if that failed.
  bool end_outcast();
  std::set<int> dead() const;
  // Executes `events` and waits until every living worker has written a line that begins with `word`. An
  // excluded worker only has to write its census. Returns false if that failed.
  bool gather(const std::string& word, absl::Duration limit, std::vector<Event> events = {});
  // Checks the line that a worker wrote when it should report `word`.
  void handle_line(int worker, const std::string& line, const std::string& word);
  // Whether the shutdown of a worker may end with this error.
  bool may_end_with(int worker, absl::StatusCode code, const std::string& message) const;
  // Waits for the end of a worker that closed its pipe, and checks that the plan explains it.
  void reap(int worker);
  // Sends a command to all workers that were neither killed nor excluded.
  void send_to_all(const std::string& line);
  // How long the machine has stood still since the start of the run.
  absl::Duration stalled() const { return options_.stalls->since(start_us_); }
  void check_calls();
  void check_end();

  const Plan plan_;
  const Options options_;
  RunReport report_;
  std::unique_ptr<StoreHost> store_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
  // Workers that have ended by a signal, not those whose kill is only planned.
  std::set<int> killed_;
  std::vector<absl::Duration> paused_;
  // Workers that have written the line for which gather() waits.
  std::set<int> answered_;
  // Workers that take no further part, except for the census: those that could not join because another one
  // was killed, and the outcast.
  std::set<int> excluded_;
  int64_t start_us_ = 0;
};

}  // namespace chaos
