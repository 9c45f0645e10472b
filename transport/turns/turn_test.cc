#include "gradwire/transport/turns/turn.h"

#include <memory>

#include "gradwire/base/manual_clock.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

// Work of a peer that has not proved who it is. Each call of serve() asks for one unit.
class TurnTest : public ::testing::Test {
 protected:
  void serve() {
    if (turn_.take(turns_, [this] { serve(); })) ++units_;
  }
  void spend_round() {
    turns_.now();
    clock_.advance(Turns::kRound);
  }

  ManualClock clock_;
  Turns turns_{clock_};
  Turn turn_;
  int units_ = 0;
};

TEST_F(TurnTest, WorkIsDoneAtOnceWhileTheRoundHasTime) {
  turns_.begin_round();
  serve();
  serve();
  EXPECT_EQ(units_, 2);
  EXPECT_FALSE(turns_.waiting());
}

TEST_F(TurnTest, WorkWaitsForALaterRoundThoughItIsTheFirstUnit) {
  turns_.begin_round();
  spend_round();
  serve();
  EXPECT_EQ(units_, 0);
  EXPECT_TRUE(turns_.waiting());
}

TEST_F(TurnTest, EventsGiveAWaitingPeerNoFurtherTurns) {
  turns_.begin_round();
  spend_round();
  for (int i = 0; i < 3; ++i) serve();
  // It stays behind what was deferred before it, even in a round that has time.
  turns_.begin_round();
  serve();
  EXPECT_EQ(units_, 0);
  EXPECT_TRUE(turns_.run_deferred());
  EXPECT_EQ(units_, 1);
  EXPECT_FALSE(turns_.waiting());
}

TEST_F(TurnTest, ATurnLastsForOneUnit) {
  turns_.begin_round();
  spend_round();
  serve();
  // The deferred task has its turn in a spent round, too.
  turns_.begin_round();
  spend_round();
  EXPECT_TRUE(turns_.run_deferred());
  EXPECT_EQ(units_, 1);
  serve();
  EXPECT_EQ(units_, 1);
  EXPECT_TRUE(turns_.waiting());
  turns_.begin_round();
  EXPECT_TRUE(turns_.run_deferred());
  EXPECT_EQ(units_, 2);
  turns_.begin_round();
  serve();
  EXPECT_EQ(units_, 3);
}

TEST(Turn, TheDeferredTaskKeepsItsOwnerAlive) {
  struct Owner {
    Turn turn;
    std::shared_ptr<int> resource;
  };
  ManualClock clock;
  Turns turns(clock);
  auto owner = std::make_shared<Owner>();
  owner->resource = std::make_shared<int>(0);
  const std::weak_ptr<int> resource = owner->resource;
  turns.begin_round();
  turns.now();
  clock.advance(Turns::kRound);
  EXPECT_FALSE(owner->turn.take(turns, [owner] { EXPECT_NE(owner->resource, nullptr); }));
  owner.reset();
  EXPECT_FALSE(resource.expired());
  turns.begin_round();
  EXPECT_TRUE(turns.run_deferred());
  EXPECT_TRUE(resource.expired());
}

}  // namespace
}  // namespace gradwire::transport
