#include "gradwire/base/copy/copy_choice.h"

#include <gtest/gtest.h>

#include <array>

namespace gradwire {
namespace {

constexpr std::array<bool, kCopyMethods> kAll = {true, true, true};

// Copies on a machine where each method has a cost.
class Machine {
 public:
  std::array<double, kCopyMethods> costs = {100, 100, 100};

  // Makes `copies` copies. Returns their average cost.
  double copy(CopyChoice& choice, int copies) {
    double sum = 0;
    for (int i = 0; i < copies; ++i) {
      const CopyMethod method = choice.next();
      ++used[static_cast<std::size_t>(method)];
      const double cost = costs[static_cast<std::size_t>(method)];
      choice.record(method, cost);
      sum += cost;
    }
    return sum / copies;
  }
  std::array<int, kCopyMethods> used = {};
};

TEST(CopyChoice, FastestMethodIsChosenAfterAFewCopies) {
  for (std::size_t fastest = 0; fastest < kCopyMethods; ++fastest) {
    CopyChoice choice(kAll);
    Machine machine;
    machine.costs[fastest] = 50;
    machine.copy(choice, 6);
    EXPECT_EQ(choice.best(), static_cast<CopyMethod>(fastest));
    EXPECT_LT(machine.copy(choice, 1000), 51);
  }
}

TEST(CopyChoice, UnusableMethodIsNeverUsed) {
  CopyChoice choice({true, false, false});
  Machine machine;
  machine.costs = {100, 1, 1};
  machine.copy(choice, 1000);
  EXPECT_EQ(machine.used, (std::array<int, kCopyMethods>{1000, 0, 0}));
}

TEST(CopyChoice, MethodThatIsAlwaysSlowerIsTriedRarely) {
  CopyChoice choice(kAll);
  Machine machine;
  machine.costs = {10, 100, 100};
  machine.copy(choice, 10'000);
  EXPECT_LT(machine.used[1] + machine.used[2], 20);
  EXPECT_GT(machine.used[1], 2);
  EXPECT_GT(machine.used[2], 2);
}

TEST(CopyChoice, ChosenMethodThatBecomesSlowIsReplacedAtOnce) {
  CopyChoice choice(kAll);
  Machine machine;
  machine.costs = {10, 30, 20};
  machine.copy(choice, 10'000);
  ASSERT_EQ(choice.best(), CopyMethod::kMemcpy);
  // The reader moves to another core.
  machine.costs = {200, 200, 20};
  machine.copy(choice, 45);
  EXPECT_EQ(choice.best(), CopyMethod::kStream);
}

TEST(CopyChoice, MethodThatBecomesFastIsFoundEventually) {
  CopyChoice choice(kAll);
  Machine machine;
  machine.costs = {200, 200, 20};
  machine.copy(choice, 300);
  ASSERT_EQ(choice.best(), CopyMethod::kStream);
  machine.costs = {10, 200, 20};
  machine.copy(choice, 2'000);
  EXPECT_EQ(choice.best(), CopyMethod::kMemcpy);
}

TEST(CopyChoice, FirstCopyOfAMethodDoesNotDecide) {
  CopyChoice choice(kAll);
  // It touches new pages.
  EXPECT_EQ(choice.next(), CopyMethod::kMemcpy);
  choice.record(CopyMethod::kMemcpy, 1000);
  Machine machine;
  machine.costs = {10, 20, 20};
  machine.copy(choice, 10);
  EXPECT_EQ(choice.best(), CopyMethod::kMemcpy);
}

TEST(CopyChoice, OneDisturbedCopyDoesNotChangeTheChoice) {
  CopyChoice choice(kAll);
  Machine machine;
  machine.costs = {100, 30, 50};
  machine.copy(choice, 100);
  ASSERT_EQ(choice.best(), CopyMethod::kString);
  choice.record(CopyMethod::kString, 70);
  EXPECT_EQ(choice.best(), CopyMethod::kString);
}

}  // namespace
}  // namespace gradwire
