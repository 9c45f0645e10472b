#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/tools/bench/report/report.h"
#include "gradwire/tools/bench/run/side.h"
#include "gradwire/tools/bench/suites/bench_options.h"

namespace gradwire::bench {

// Measures the cases: in each round of a case every side runs once, Gradwire first, while the processes of
// the others sleep. A side that fails is left out of the case, and the report says why.
class Runner {
 public:
  // `on_row` hears each row as soon as it is known, `on_progress` each case as it begins.
  Runner(BenchOptions options, std::function<void(const Row&)> on_row,
         std::function<void(const std::string&)> on_progress);

  Report run();

 private:
  struct Contender {
    const RoleSpec* role;
    std::unique_ptr<Side> side;
    // Of the case at hand.
    int members = 0;
    // In the case at hand, and over all cases: a side that cannot start, or fails often, is not tried again.
    bool failed = false;
    int failures = 0;
  };
  struct Result {
    std::string name;
    std::vector<Figure> figures;
  };

  void run_suite(const std::string& suite, const std::string& transport);
  void run_case(const CaseSpec& spec, const std::string& transport, std::vector<Contender>& contenders);
  // The figures of every side that can run the case; Gradwire's first, or none at all.
  std::vector<Result> rounds(const CaseSpec& spec, const std::string& transport,
                             std::vector<Contender*>& sides);
  void in_flight(const CaseSpec& spec, const std::string& transport, std::vector<Contender*>& sides);
  absl::StatusOr<Round> one_round(const CaseSpec& spec, const std::string& transport, Contender& contender,
                                  int depth, double seconds);
  // Has the caller say what else it finds in the case.
  static absl::StatusOr<Round> add_beside(Round round, Task task, Side& side);
  // Has the members say what contact with one another costs them while they are idle.
  static absl::StatusOr<Round> add_footprint(Round round, Side& side);
  void add_rows(const CaseSpec& spec, const std::string& transport, const std::vector<Result>& results);
  void add_point(const std::string& plot, const std::string& transport, const std::string& side, double x,
                 double y);
  void give_up(Contender& contender, const CaseSpec& spec, const absl::Status& status);

  const BenchOptions options_;
  const std::function<void(const Row&)> on_row_;
  const std::function<void(const std::string&)> on_progress_;
  Report report_;
};

}  // namespace gradwire::bench
