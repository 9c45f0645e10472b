#include "gradwire/transport/turns/turns.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "gradwire/base/manual_clock.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

constexpr absl::Duration kUnit = absl::Microseconds(10);
// Units that fit into a round.
const int kUnits = Turns::kRound / kUnit;

TEST(Turns, ARoundIsSpentWhenItsTimeIsOver) {
  ManualClock clock;
  Turns turns(clock);
  turns.begin_round();
  EXPECT_FALSE(turns.spent());
  clock.advance(Turns::kRound - absl::Nanoseconds(1));
  EXPECT_FALSE(turns.spent());
  clock.advance(absl::Nanoseconds(1));
  EXPECT_TRUE(turns.spent());
  turns.begin_round();
  EXPECT_FALSE(turns.spent());
}

TEST(Turns, TheTimeBeginsWithTheFirstQuestion) {
  ManualClock clock;
  Turns turns(clock);
  turns.begin_round();
  clock.advance(10 * Turns::kRound);
  EXPECT_FALSE(turns.spent());
  turns.begin_round();
  turns.now();
  clock.advance(Turns::kRound);
  EXPECT_TRUE(turns.spent());
}

TEST(Turns, DeferredTasksRunInTheirOrderWhileThereIsTime) {
  ManualClock clock;
  Turns turns(clock);
  std::string ran;
  for (const char name : std::string("abc")) turns.defer([&ran, name] { ran += name; });
  EXPECT_TRUE(turns.waiting());
  turns.begin_round();
  EXPECT_TRUE(turns.run_deferred());
  EXPECT_EQ(ran, "abc");
  EXPECT_FALSE(turns.waiting());
  EXPECT_FALSE(turns.run_deferred());
}

TEST(Turns, ASpentRoundStillRunsOneDeferredTask) {
  ManualClock clock;
  Turns turns(clock);
  std::string ran;
  for (const char name : std::string("ab")) turns.defer([&ran, name] { ran += name; });
  turns.begin_round();
  turns.now();
  clock.advance(Turns::kRound);
  EXPECT_TRUE(turns.run_deferred());
  EXPECT_EQ(ran, "a");
  EXPECT_TRUE(turns.waiting());
}

// Two peers have more work than a round has time for, and a third one little.
TEST(Turns, PeersThatDeferMuchTakeTurnsAndDelayOthersByOneRound) {
  ManualClock clock;
  Turns turns(clock);
  std::string ran;
  std::function<void(char)> serve = [&](char peer) {
    do {
      ran += peer;
      clock.advance(kUnit);
    } while (!turns.spent());
    turns.defer([&serve, peer] { serve(peer); });
  };
  turns.begin_round();
  turns.now();
  serve('a');
  serve('b');
  EXPECT_EQ(ran, std::string(kUnits, 'a') + "b");
  ran.clear();
  for (int round = 0; round < 4; ++round) {
    const absl::Time begin = clock.now();
    turns.begin_round();
    ran += '.';
    EXPECT_TRUE(turns.run_deferred());
    // The question before the first unit of a deferred task comes after it: one unit more.
    EXPECT_LE(clock.now() - begin, Turns::kRound + kUnit);
  }
  EXPECT_EQ(std::count(ran.begin(), ran.end(), 'a'), std::count(ran.begin(), ran.end(), 'b'));
  EXPECT_EQ(ran.find("ab"), std::string::npos);
  turns.clear();
  EXPECT_FALSE(turns.waiting());
}

// The end of a task may end a connection, which defers its last work.
TEST(Turns, ClearAlsoDropsWhatTheEndOfATaskDefers) {
  ManualClock clock;
  Turns turns(clock);
  int runs = 0;
  const auto owner = [&turns, &runs] {
    return std::shared_ptr<int>(new int(0), [&turns, &runs](int* number) {
      delete number;
      turns.defer([&runs] { ++runs; });
    });
  };
  turns.defer([owned = owner()] {});
  turns.clear();
  EXPECT_FALSE(turns.waiting());
  turns.begin_round();
  EXPECT_FALSE(turns.run_deferred());
  EXPECT_EQ(runs, 0);
}

TEST(Turns, ATaskThatDefersItselfRunsOnceInARound) {
  ManualClock clock;
  Turns turns(clock);
  int ran = 0;
  std::function<void()> again = [&] {
    ++ran;
    turns.defer([&again] { again(); });
  };
  turns.defer([&again] { again(); });
  for (int round = 1; round <= 3; ++round) {
    turns.begin_round();
    EXPECT_TRUE(turns.run_deferred());
    EXPECT_EQ(ran, round);
  }
}

}  // namespace
}  // namespace gradwire::transport
