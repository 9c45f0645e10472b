#include "gradwire/autograd/context/context_table.h"

#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::autograd {
namespace {

using Entry = ContextTable::Entry;

TEST(ContextTable, FirstMessageMakesTheContextLive) {
  ContextTable table;
  EXPECT_EQ(table.enter({7, 3}), Entry::kNew);
  EXPECT_EQ(table.enter({7, 3}), Entry::kLive);
  EXPECT_TRUE(table.live({7, 3}));
  EXPECT_FALSE(table.live({8, 3}));
}

TEST(ContextTable, EachSenderOpensSoManyContexts) {
  ContextTable table(ContextTable::Bounds{.live_of_sender = 2});
  EXPECT_EQ(table.enter({7, 1}, 7), Entry::kNew);
  // The sender chooses the origin, so its own number counts.
  EXPECT_EQ(table.enter({8, 1}, 7), Entry::kNew);
  EXPECT_EQ(table.enter({7, 2}, 7), Entry::kTooManyOfSender);
  EXPECT_EQ(table.enter({9, 1}, 7), Entry::kTooManyOfSender);
  EXPECT_EQ(table.opened_by(7), 2u);
  // Others are not affected, and neither is a context that is live.
  EXPECT_EQ(table.enter({7, 2}, 6), Entry::kNew);
  EXPECT_EQ(table.enter({7, 2}, 7), Entry::kLive);
  EXPECT_EQ(table.opened_by(7), 2u);
  for (uint64_t counter = 10; counter < 20; ++counter) EXPECT_EQ(table.enter({5, counter}), Entry::kNew);
  // The end of a context gives its place back.
  table.release({7, 1}, 0);
  EXPECT_EQ(table.enter({7, 3}, 7), Entry::kNew);
  EXPECT_EQ(table.enter({7, 4}, 7), Entry::kTooManyOfSender);
  // A refused context stays new.
  EXPECT_EQ(table.origins(), 3u);
}

TEST(ContextTable, ALostSenderGivesItsPlacesBack) {
  ContextTable table(ContextTable::Bounds{.live_of_sender = 2});
  table.enter({7, 1}, 7);
  table.enter({8, 1}, 7);
  table.worker_lost(7);
  for (const rpc::Id& orphan : table.origin_lost(7)) table.release(orphan, 0);
  EXPECT_EQ(table.opened_by(7), 1u);
  table.release({8, 1}, 0);
  EXPECT_EQ(table.opened_by(7), 0u);
  EXPECT_EQ(table.size(), 0u);
}

TEST(ContextTable, LateMessageDoesNotMakeAReleasedContextLive) {
  ContextTable table;
  table.enter({7, 1});
  table.enter({7, 2});
  ASSERT_TRUE(table.release({7, 2}, 1).has_value());
  EXPECT_EQ(table.enter({7, 2}), Entry::kReleased);
  EXPECT_EQ(table.enter({7, 3}), Entry::kNew);
  EXPECT_EQ(table.enter({7, 1}), Entry::kLive);
}

TEST(ContextTable, ReleaseThatOvertakesTheFirstMessageIsRemembered) {
  ContextTable table;
  EXPECT_FALSE(table.release({7, 5}, 2).has_value());
  EXPECT_EQ(table.enter({7, 5}), Entry::kReleased);
  EXPECT_EQ(table.enter({7, 1}), Entry::kReleased);
  EXPECT_EQ(table.enter({7, 2}), Entry::kNew);
}

TEST(ContextTable, WatermarkDropsTombstones) {
  ContextTable table;
  for (uint64_t counter = 2; counter < 100; ++counter) {
    table.enter({7, counter});
    table.release({7, counter}, 1);
  }
  EXPECT_EQ(table.remembered(), 98u);
  table.enter({7, 1});
  table.release({7, 1}, 100);
  EXPECT_EQ(table.remembered(), 0u);
  EXPECT_EQ(table.enter({7, 50}), Entry::kReleased);
}

TEST(ContextTable, LowIsTheLowestLiveCounter) {
  ContextTable table;
  EXPECT_EQ(table.low(7, 4), 4u);
  table.enter({7, 4});
  table.enter({7, 9});
  EXPECT_EQ(table.low(7, 10), 4u);
  table.release({7, 4}, 9);
  EXPECT_EQ(table.low(7, 10), 9u);
}

TEST(ContextTable, ReleaseNamesEveryWorkerTouched) {
  ContextTable table;
  EXPECT_FALSE(table.touch({7, 1}, 20));
  table.enter({7, 1});
  EXPECT_TRUE(table.touch({7, 1}, 20));
  EXPECT_TRUE(table.touch({7, 1}, 21));
  EXPECT_TRUE(table.touch({7, 1}, 20));
  table.worker_lost(21);
  EXPECT_EQ(table.release({7, 1}, 2), std::vector<uint64_t>{20});
  EXPECT_FALSE(table.touch({7, 1}, 20));
}

TEST(ContextTable, LostOriginIsNeverNewAgain) {
  ContextTable table;
  table.enter({7, 1});
  table.enter({7, 4});
  table.enter({8, 1});
  EXPECT_EQ(table.origin_lost(7), (std::vector<rpc::Id>{{7, 1}, {7, 4}}));
  EXPECT_EQ(table.enter({7, 5}), Entry::kReleased);
  EXPECT_EQ(table.enter({8, 1}), Entry::kLive);
}

TEST(ContextTable, OverdueContextsAreThoseBelowTheWatermark) {
  ContextTable table;
  table.enter({7, 1});
  table.enter({7, 2});
  table.release({7, 2}, 2);
  EXPECT_EQ(table.overdue(7), (std::vector<rpc::Id>{{7, 1}}));
}

TEST(ContextTable, RefusedOriginsAndContextsLeaveNoRow) {
  ContextTable table({.live = 2, .origins = 3, .released = 4});
  EXPECT_EQ(table.enter({7, 1}), Entry::kNew);
  EXPECT_EQ(table.enter({8, 1}), Entry::kNew);
  for (uint64_t origin = 100; origin < 200; ++origin) EXPECT_EQ(table.enter({origin, 1}), Entry::kTooMany);
  EXPECT_EQ(table.origins(), 2u);
  EXPECT_EQ(table.size(), 2u);
  // Releases of unknown contexts do not add rows beyond the limit either.
  for (uint64_t origin = 100; origin < 200; ++origin) table.cleanup({origin, 1}, 0, 50);
  for (uint64_t origin = 200; origin < 300; ++origin) table.cleanup({origin, 1}, 0, origin);
  EXPECT_EQ(table.origins(), 3u);
  EXPECT_LE(table.remembered(), 4u);
  ASSERT_TRUE(table.release({7, 1}, 2).has_value());
  EXPECT_EQ(table.enter({8, 2}), Entry::kNew);
}

TEST(ContextTable, LostOriginsAreRememberedUpToTheLimit) {
  ContextTable table({.live = 8, .origins = 3, .released = 4});
  table.enter({1, 5});
  for (uint64_t origin = 1; origin <= 100; ++origin) {
    for (const rpc::Id& id : table.origin_lost(origin)) table.release(id, 0);
  }
  EXPECT_EQ(table.origins(), 0u);
  EXPECT_EQ(table.size(), 0u);
  for (uint64_t origin = 98; origin <= 100; ++origin)
    EXPECT_EQ(table.enter({origin, 1}), Entry::kReleased) << origin;
}

TEST(ContextTable, ReleasedCountersAreBoundedAndTheOldestIsForgotten) {
  ContextTable table({.live = 8, .origins = 3, .released = 4});
  // This context holds the watermark down all the time.
  ASSERT_EQ(table.enter({7, 1}), Entry::kNew);
  for (uint64_t counter = 2; counter < 1000; ++counter) {
    ASSERT_EQ(table.enter({7, counter}), Entry::kNew);
    table.release({7, counter}, 1);
    ASSERT_LE(table.remembered(), 4u);
  }
  for (uint64_t counter = 996; counter < 1000; ++counter)
    EXPECT_EQ(table.enter({7, counter}), Entry::kReleased) << counter;
  EXPECT_EQ(table.enter({7, 1}), Entry::kLive);
  // The watermark ends the context that became live again.
  ASSERT_EQ(table.enter({7, 500}), Entry::kNew);
  table.release({7, 1}, 1000);
  EXPECT_EQ(table.overdue(7), (std::vector<rpc::Id>{{7, 500}}));
}

TEST(ContextTable, StrangerDoesNotEndALiveContext) {
  ContextTable table;
  table.enter({7, 1}, 7);
  table.touch({7, 1}, 20);
  const ContextTable::Cleanup cleanup = table.cleanup({7, 1}, 100, 30);
  EXPECT_TRUE(cleanup.refused);
  EXPECT_TRUE(cleanup.ended.empty());
  EXPECT_TRUE(table.live({7, 1}));
  // Its watermark does not end other contexts, live or new.
  EXPECT_EQ(table.enter({7, 2}, 7), Entry::kNew);
  EXPECT_EQ(table.enter({7, 50}, 20), Entry::kNew);
}

TEST(ContextTable, StrangerDoesNotEndAContextBeforeItsFirstMessage) {
  ContextTable table;
  EXPECT_FALSE(table.cleanup({7, 5}, 100, 30).refused);
  EXPECT_EQ(table.enter({7, 5}, 7), Entry::kNew);
  EXPECT_EQ(table.enter({7, 6}, 7), Entry::kNew);
}

TEST(ContextTable, PartyEndsTheContextButNoOther) {
  for (const bool sent_here : {true, false}) {
    ContextTable table;
    table.enter({7, 1}, 7);
    table.enter({7, 5}, sent_here ? 20 : 7);
    if (!sent_here) table.touch({7, 5}, 20);
    table.touch({7, 5}, 21);
    const ContextTable::Cleanup cleanup = table.cleanup({7, 5}, 100, 20);
    EXPECT_FALSE(cleanup.refused);
    ASSERT_EQ(cleanup.ended.size(), 1u);
    EXPECT_EQ(cleanup.ended[0].context, (rpc::Id{7, 5}));
    EXPECT_THAT(cleanup.ended[0].touched, ::testing::Contains(21));
    EXPECT_EQ(table.enter({7, 5}, 7), Entry::kReleased);
    EXPECT_TRUE(table.live({7, 1}));
    EXPECT_EQ(table.enter({7, 50}, 7), Entry::kNew);
  }
}

TEST(ContextTable, CleanupThatOvertakesItsOwnMessageHoldsAgainstItsSenderAlone) {
  ContextTable table;
  table.enter({7, 5}, 21);
  EXPECT_TRUE(table.cleanup({7, 5}, 0, 20).refused);
  EXPECT_FALSE(table.cleanup({7, 5}, 0, 21).refused);
  EXPECT_EQ(table.enter({7, 5}, 20), Entry::kReleased);
  ASSERT_TRUE(table.cleanup({7, 9}, 0, 20).ended.empty());
  EXPECT_EQ(table.enter({7, 9}, 20), Entry::kReleased);
  EXPECT_EQ(table.enter({7, 9}, 21), Entry::kNew);
}

TEST(ContextTable, LossOfTheLastPartyEndsAContextWhoseEndAStrangerHasClaimed) {
  ContextTable table;
  table.enter({7, 5}, 20);
  EXPECT_TRUE(table.cleanup({7, 5}, 6, 21).refused);
  const auto ended = table.worker_lost(20);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].context, (rpc::Id{7, 5}));
  // A watermark that arrives later also ends a context without parties.
  table.enter({7, 8}, 22);
  EXPECT_TRUE(table.worker_lost(22).empty());
  EXPECT_EQ(table.cleanup({7, 10}, 9, 21).ended.size(), 1u);
  EXPECT_EQ(table.size(), 0u);
}

TEST(ContextTable, ClaimsOfStrangersAreBounded) {
  ContextTable table({.live = 8, .origins = 3, .released = 4});
  table.enter({7, 1}, 7);
  for (uint64_t i = 2; i < 1000; ++i) table.cleanup({7, i}, 0, 100 + i);
  EXPECT_LE(table.remembered(), 4u);
  EXPECT_TRUE(table.live({7, 1}));
}

// Two tables, one of an origin and one of a peer. Messages and releases of many contexts reach the peer in
// any order.
TEST(ContextTable, NoOrderOfDeliveryRevivesAReleasedContext) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    ContextTable origin;
    ContextTable peer;
    uint64_t next = 1;
    std::vector<uint64_t> open;
    struct Message {
      bool release;
      uint64_t counter;
      uint64_t low;
    };
    std::vector<Message> under_way;
    std::set<uint64_t> released_at_peer;
    for (int step = 0; step < 60 || !under_way.empty() || !open.empty(); ++step) {
      const uint32_t dice = random() % 4;
      if (dice == 0 && step < 60) {
        open.push_back(next);
        origin.enter({7, next++});
        origin.touch({7, open.back()}, 9);
        under_way.push_back({false, open.back(), 0});
      } else if (dice == 1 && !open.empty()) {
        const std::size_t which = random() % open.size();
        const uint64_t counter = open[which];
        open.erase(open.begin() + which);
        ASSERT_TRUE(origin.release({7, counter}, 0).has_value());
        under_way.push_back({true, counter, origin.low(7, next)});
      } else if (!under_way.empty()) {
        const std::size_t which = random() % under_way.size();
        const Message message = under_way[which];
        under_way.erase(under_way.begin() + which);
        if (message.release) {
          peer.release({7, message.counter}, message.low);
          released_at_peer.insert(message.counter);
        } else {
          const Entry entry = peer.enter({7, message.counter});
          if (released_at_peer.contains(message.counter)) {
            ASSERT_EQ(entry, Entry::kReleased) << "seed " << seed;
          }
          if (origin.live({7, message.counter})) {
            ASSERT_NE(entry, Entry::kReleased) << "seed " << seed;
          }
        }
      }
    }
    // The last release has a watermark above all counters: afterwards no context is live.
    peer.release({7, next}, next + 1);
    for (const rpc::Id& id : peer.overdue(7)) peer.release(id, 0);
    ASSERT_EQ(peer.size(), 0u) << "seed " << seed;
    ASSERT_EQ(peer.remembered(), 0u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace gradwire::autograd
