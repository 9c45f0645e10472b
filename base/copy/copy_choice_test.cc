#include "gradwire/base/copy/copy_choice.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace gradwire {
namespace {

constexpr std::array<bool, kCopyMethods> kAll = {true, true, true};

std::size_t index(CopyMethod method) { return static_cast<std::size_t>(method); }

// Copies on a machine where each method has a cost.
class Machine {
 public:
  std::array<double, kCopyMethods> costs = {100, 100, 100};
  // One of this many copies is interrupted, with a cost that is far above all others; 0: none is.
  int interrupted_of = 0;

  // Makes `copies` copies. Returns their average cost without interruptions.
  double copy(CopyChoice& choice, int copies) {
    double sum = 0;
    for (int i = 0; i < copies; ++i) {
      const CopyOrder order = choice.next();
      ++used[index(order.method)];
      timed += order.timed ? 1 : 0;
      const double cost = costs[index(order.method)];
      // The multiplication spreads the interruptions, so that they do not fall in step with the trials.
      const bool interrupted =
          interrupted_of > 0 &&
          ++copied_ * 2654435761u % 1000003u % static_cast<unsigned>(interrupted_of) == 0;
      if (order.timed) choice.record(order.method, interrupted ? 100'000 : cost);
      sum += cost;
    }
    return sum / copies;
  }
  std::array<int, kCopyMethods> used = {};
  int timed = 0;

 private:
  unsigned copied_ = 0;
};

TEST(CopyChoice, FastestMethodIsChosenAfterAFewCopies) {
  for (std::size_t fastest = 0; fastest < kCopyMethods; ++fastest) {
    CopyChoice choice({.usable = kAll});
    Machine machine;
    machine.costs[fastest] = 50;
    machine.copy(choice, 9);
    EXPECT_EQ(choice.best(), static_cast<CopyMethod>(fastest));
    EXPECT_LT(machine.copy(choice, 1000), 51);
  }
}

TEST(CopyChoice, UnusableMethodIsNeverUsed) {
  CopyChoice only_memcpy({.usable = {false, false, false}});
  Machine machine;
  machine.costs = {100, 1, 1};
  machine.copy(only_memcpy, 1000);
  EXPECT_EQ(machine.used, (std::array<int, kCopyMethods>{1000, 0, 0}));
  EXPECT_EQ(machine.timed, 0);

  CopyChoice no_string({.usable = {true, false, true}});
  machine.costs = {10, 1, 20};
  machine.copy(no_string, 1000);
  EXPECT_EQ(machine.used[index(CopyMethod::kString)], 0);
  EXPECT_GT(machine.used[index(CopyMethod::kStream)], 3);
}

TEST(CopyChoice, MethodThatIsAlwaysSlowerIsTriedRarely) {
  CopyChoice choice({.usable = kAll});
  Machine machine;
  machine.costs = {10, 100, 100};
  machine.copy(choice, 10'000);
  EXPECT_LT(machine.used[1] + machine.used[2], 20);
  EXPECT_GT(machine.used[1], 3);
  EXPECT_GT(machine.used[2], 3);
}

TEST(CopyChoice, OnlySomeCopiesAreTimed) {
  CopyChoice choice({.usable = kAll, .copies_per_timed = 8});
  Machine machine;
  machine.costs = {10, 100, 100};
  machine.copy(choice, 1000);
  machine.timed = 0;
  machine.copy(choice, 8000);
  EXPECT_GE(machine.timed, 990);
  EXPECT_LT(machine.timed, 1020);
}

TEST(CopyChoice, ChosenMethodThatBecomesSlowIsReplacedAtOnce) {
  for (const int copies_per_timed : {1, 8}) {
    CopyChoice choice({.usable = kAll, .copies_per_timed = copies_per_timed});
    Machine machine;
    machine.costs = {10, 30, 20};
    machine.copy(choice, 10'000);
    ASSERT_EQ(choice.best(), CopyMethod::kMemcpy);
    // The reader moves to another core.
    machine.costs = {200, 200, 20};
    machine.copy(choice, 3 * copies_per_timed + 4);
    EXPECT_EQ(choice.best(), CopyMethod::kStream);
  }
}

TEST(CopyChoice, MethodThatBecomesFastIsFoundEventually) {
  CopyChoice choice({.usable = kAll});
  Machine machine;
  machine.costs = {200, 200, 20};
  machine.copy(choice, 300);
  ASSERT_EQ(choice.best(), CopyMethod::kStream);
  machine.costs = {10, 200, 20};
  machine.copy(choice, 2'000);
  EXPECT_EQ(choice.best(), CopyMethod::kMemcpy);
}

TEST(CopyChoice, ReaderThatMovesBackAndForthIsFollowed) {
  CopyChoice choice({.usable = kAll});
  Machine machine;
  for (int i = 0; i < 20; ++i) {
    machine.costs = {385, 354, 42};
    machine.copy(choice, 10);
    EXPECT_LT(machine.copy(choice, 1000), 50);
    machine.costs = {23, 25, 39};
    machine.copy(choice, 2100);
    EXPECT_LT(machine.copy(choice, 1000), 24);
  }
}

TEST(CopyChoice, FirstCopyOfEachMethodDoesNotDecide) {
  CopyChoice choice({.usable = kAll});
  Machine machine;
  // They touch new pages.
  machine.costs = {1000, 900, 800};
  machine.copy(choice, 3);
  EXPECT_EQ(machine.used, (std::array<int, kCopyMethods>{1, 1, 1}));
  machine.costs = {10, 20, 20};
  machine.copy(choice, 6);
  EXPECT_EQ(choice.best(), CopyMethod::kMemcpy);
}

TEST(CopyChoice, TrialDoesNotCountCostsOfOtherTimes) {
  CopyChoice choice({.usable = {true, false, true}});
  Machine machine;
  machine.costs = {10, 0, 5};
  machine.copy(choice, 1000);
  ASSERT_EQ(choice.best(), CopyMethod::kStream);
  // memcpy has five costs of 10 from before. Now it takes 100, and the chosen method 50.
  machine.costs = {100, 0, 50};
  machine.copy(choice, 10'000);
  EXPECT_EQ(choice.best(), CopyMethod::kStream);
}

TEST(CopyChoice, InterruptedCopiesDoNotCount) {
  CopyChoice choice({.usable = kAll});
  Machine machine;
  machine.costs = {100, 30, 50};
  machine.interrupted_of = 50;
  machine.copy(choice, 100);
  // With a moving average one interruption would replace the chosen method for as long as the next trial
  // takes.
  EXPECT_LT(machine.copy(choice, 10'000), 31);
}

TEST(CopyChoice, MethodThatIsOftenSlowIsNotChosen) {
  CopyChoice choice({.usable = {true, false, true}});
  int streams = 0;
  for (int i = 0; i < 10'000; ++i) {
    const CopyOrder order = choice.next();
    // The reader is on another core in two of five copies.
    const double memcpy_cost = i % 5 < 2 ? 385 : 23;
    if (order.timed) choice.record(order.method, order.method == CopyMethod::kStream ? 98 : memcpy_cost);
    streams += order.method == CopyMethod::kStream ? 1 : 0;
  }
  EXPECT_GT(streams, 8'000);
}

TEST(CopyChoice, InterruptedFirstCopiesAreForgotten) {
  CopyChoice choice({.usable = kAll});
  for (int i = 0; i < 9; ++i) {
    const CopyOrder order = choice.next();
    choice.record(order.method, order.method == CopyMethod::kString ? 100'000 : 50);
  }
  ASSERT_NE(choice.best(), CopyMethod::kString);
  Machine machine;
  machine.costs = {50, 10, 50};
  machine.copy(choice, 200);
  EXPECT_EQ(choice.best(), CopyMethod::kString);
}

// Several threads copy at the same time: costs are recorded after further orders.
TEST(CopyChoice, CostsMayBeRecordedLate) {
  CopyChoice choice({.usable = kAll});
  const std::array<double, kCopyMethods> costs = {100, 30, 50};
  std::vector<CopyOrder> orders;
  int best = 0;
  for (int i = 0; i < 10'000; ++i) {
    orders.push_back(choice.next());
    if (orders.size() < 4) continue;
    const CopyOrder order = orders.front();
    orders.erase(orders.begin());
    if (order.timed) choice.record(order.method, costs[index(order.method)]);
    best += order.method == CopyMethod::kString ? 1 : 0;
  }
  EXPECT_EQ(choice.best(), CopyMethod::kString);
  EXPECT_GT(best, 9'900);
}

}  // namespace
}  // namespace gradwire
