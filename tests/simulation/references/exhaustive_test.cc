#include <iostream>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "gradwire/tests/simulation/harness/instrumented.h"
#include "gradwire/tests/simulation/references/small_scope.h"
#include "gtest/gtest.h"

namespace gradwire::references_simulation {
namespace {

// With three forks there are many millions of states. The test visits as many as it can in a reasonable time.
constexpr uint64_t kMaxStatesWithThreeForks = simulation::kInstrumented ? 10'000 : 250'000;

// Visits every reachable state of a SmallScope by depth-first search, or at most `max_states`.
class Exploration {
 public:
  explicit Exploration(uint64_t max_states) : max_states_(max_states) {}

  // Returns false if an invariant is violated; then trace() returns the moves that lead to the violation.
  bool visit(const SmallScope& scope) {
    if (visited_.size() >= max_states_) {
      complete_ = false;
      return true;
    }
    if (!visited_.insert(absl::Hash<SmallScope>()(scope)).second) return true;
    const std::vector<SmallScope::Move> moves = scope.moves();
    if (moves.empty()) {
      ++ends_;
      return record(scope.check_end());
    }
    for (const SmallScope::Move& move : moves) {
      SmallScope next(scope);
      const std::string violation = next.apply(move);
      if (record(violation) && visit(next)) continue;
      trace_.push_back(scope.describe(move));
      return false;
    }
    return true;
  }

  std::string trace() const {
    std::string text;
    for (auto line = trace_.rbegin(); line != trace_.rend(); ++line) text += *line + "\n";
    return text + "VIOLATED: " + violation_;
  }
  uint64_t states() const { return visited_.size(); }
  uint64_t ends() const { return ends_; }
  bool complete() const { return complete_; }

 private:
  // Keeps the first violation. Returns true if `violation` is empty.
  bool record(const std::string& violation) {
    if (violation_.empty()) violation_ = violation;
    return violation.empty();
  }

  const uint64_t max_states_;
  absl::flat_hash_set<std::size_t> visited_;
  uint64_t ends_ = 0;
  bool complete_ = true;
  std::string violation_;
  std::vector<std::string> trace_;
};

class SmallScopeTest : public ::testing::TestWithParam<std::tuple<int, bool, SmallScope::Fault>> {};

TEST_P(SmallScopeTest, EveryOrderIsSafeAndEnds) {
  const auto [forks, by_request, fault] = GetParam();
  Exploration exploration(forks == 2 ? 1'000'000 : kMaxStatesWithThreeForks);
  const bool good = exploration.visit(SmallScope(by_request, forks, fault));
  EXPECT_TRUE(good) << exploration.trace();
  EXPECT_TRUE(exploration.complete() || forks > 2);
  EXPECT_GT(exploration.ends(), 0u);
  std::cout << exploration.states() << " states, " << exploration.ends() << " of them final"
            << (exploration.complete() ? "" : "; stopped at the limit of states") << "\n";
}

std::string name(const ::testing::TestParamInfo<std::tuple<int, bool, SmallScope::Fault>>& info) {
  static constexpr const char* kFaults[] = {"Nothing", "Loss", "Duplicate", "Crash", "BrokenLink", "GiveUp"};
  return std::string(std::get<1>(info.param) ? "Created" : "Owned") + "With" +
         kFaults[static_cast<int>(std::get<2>(info.param))];
}

const auto kFaults =
    ::testing::Values(SmallScope::Fault::kNone, SmallScope::Fault::kLoss, SmallScope::Fault::kDuplicate,
                      SmallScope::Fault::kCrash, SmallScope::Fault::kBrokenLink, SmallScope::Fault::kGiveUp);
INSTANTIATE_TEST_SUITE_P(TwoForks, SmallScopeTest,
                         ::testing::Combine(::testing::Values(2), ::testing::Bool(), kFaults), name);
INSTANTIATE_TEST_SUITE_P(ThreeForks, SmallScopeTest,
                         ::testing::Combine(::testing::Values(3), ::testing::Bool(), kFaults), name);

}  // namespace
}  // namespace gradwire::references_simulation
