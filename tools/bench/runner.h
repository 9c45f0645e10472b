#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/tools/bench/report/report.h"
#include "gradwire/tools/bench/run/system.h"
#include "gradwire/tools/bench/suites/bench_options.h"

namespace gradwire::bench {

// Measures the cases. In each round of a case every system runs once, Gradwire first, while the processes of
// the other systems sleep. A system that fails is left out of the case, and the report contains the reason.
class Runner {
 public:
  // Calls `on_row` with each row as soon as it is measured, and `on_progress` with a line for each case that
  // begins.
  Runner(BenchOptions options, std::function<void(const Row&)> on_row,
         std::function<void(const std::string&)> on_progress);

  Report run();

 private:
  // A system that takes part in a suite.
  struct Entry {
    const RoleSpec* role;
    std::unique_ptr<System> system;  // nullptr while it is not started.
    // Number of processes in the current case.
    int members = 0;
    // Whether the system failed in the current case.
    bool failed = false;
    // Number of failures over all cases. A system that cannot start, or fails often, is not tried again.
    int failures = 0;
  };
  struct Result {
    std::string name;
    std::vector<Figure> figures;
  };

  void run_suite(const std::string& suite, const std::string& transport);
  void run_case(const CaseSpec& spec, const std::string& transport, std::vector<Entry>& entries);
  // Returns the figures of every system that can run the case, Gradwire's first. Empty if Gradwire failed.
  std::vector<Result> rounds(const CaseSpec& spec, const std::string& transport,
                             std::vector<Entry*>& systems);
  void in_flight(const CaseSpec& spec, const std::string& transport, std::vector<Entry*>& systems);
  absl::StatusOr<Round> one_round(const CaseSpec& spec, const std::string& transport, Entry& entry, int depth,
                                  double seconds);
  // Runs the case again for the extra figures of the calling member (Task::extra_figures), and adds them to
  // `round`.
  static absl::StatusOr<Round> add_extra_figures(Round round, Task task, System& system);
  // Adds to `round` what the connections to the other members cost each member while it is idle.
  static absl::StatusOr<Round> add_footprint(Round round, System& system);
  void add_rows(const CaseSpec& spec, const std::string& transport, const std::vector<Result>& results);
  void add_point(const std::string& plot, const std::string& transport, const std::string& system, double x,
                 double y);
  void give_up(Entry& entry, const CaseSpec& spec, const absl::Status& status);

  const BenchOptions options_;
  const std::function<void(const Row&)> on_row_;
  const std::function<void(const std::string&)> on_progress_;
  Report report_;
};

}  // namespace gradwire::bench
