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

// With three forks there are many millions of states: as many as are visited in reasonable time.
constexpr uint64_t kMostOfThreeForks = simulation::kInstrumented ? 10'000 : 250'000;

// Visits every state that can be reached.
class Exploration {
 public:
  explicit Exploration(uint64_t most) : most_(most) {}

  // False when something is violated; then trace() says how it came to that.
  bool visit(const SmallScope& scope) {
    if (visited_.size() >= most_) {
      complete_ = false;
      return true;
    }
    if (!visited_.insert(absl::Hash<SmallScope>()(scope)).second) return true;
    const std::vector<SmallScope::Move> moves = scope.moves();
    if (moves.empty()) {
      ++ends_;
      return note(scope.check_end());
    }
    for (const SmallScope::Move& move : moves) {
      SmallScope next(scope);
      const std::string violation = next.apply(move);
      if (note(violation) && visit(next)) continue;
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
  bool note(const std::string& violation) {
    if (violation_.empty()) violation_ = violation;
    return violation.empty();
  }

  const uint64_t most_;
  absl::flat_hash_set<std::size_t> visited_;
  uint64_t ends_ = 0;
  bool complete_ = true;
  std::string violation_;
  std::vector<std::string> trace_;
};

class SmallScopeTest : public testing::TestWithParam<std::tuple<int, bool, SmallScope::Fault>> {};

TEST_P(SmallScopeTest, EveryOrderIsSafeAndEnds) {
  const auto [forks, by_request, fault] = GetParam();
  Exploration exploration(forks == 2 ? 1'000'000 : kMostOfThreeForks);
  const bool good = exploration.visit(SmallScope(by_request, forks, fault));
  EXPECT_TRUE(good) << exploration.trace();
  EXPECT_TRUE(exploration.complete() || forks > 2);
  EXPECT_GT(exploration.ends(), 0u);
  std::cout << exploration.states() << " states, " << exploration.ends() << " of them ends"
            << (exploration.complete() ? "" : "; there are more") << "\n";
}

std::string name(const testing::TestParamInfo<std::tuple<int, bool, SmallScope::Fault>>& info) {
  static constexpr const char* kFaults[] = {"Nothing", "Loss", "Duplicate", "Crash", "BrokenLink", "GiveUp"};
  return std::string(std::get<1>(info.param) ? "Created" : "Owned") + "With" +
         kFaults[static_cast<int>(std::get<2>(info.param))];
}

const auto kFaults =
    testing::Values(SmallScope::Fault::kNone, SmallScope::Fault::kLoss, SmallScope::Fault::kDuplicate,
                    SmallScope::Fault::kCrash, SmallScope::Fault::kBrokenLink, SmallScope::Fault::kGiveUp);
INSTANTIATE_TEST_SUITE_P(TwoForks, SmallScopeTest,
                         testing::Combine(testing::Values(2), testing::Bool(), kFaults), name);
INSTANTIATE_TEST_SUITE_P(ThreeForks, SmallScopeTest,
                         testing::Combine(testing::Values(3), testing::Bool(), kFaults), name);

}  // namespace
}  // namespace gradwire::references_simulation
