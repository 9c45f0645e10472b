#include "gradwire/rpc/link/arrivals.h"

#include <memory>

#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

using ArrivalCounter = Arrivals::Counter;

std::shared_ptr<ArrivalCounter> counter(uint64_t read = 0) { return std::make_shared<ArrivalCounter>(read); }

TEST(Arrivals, OneConnectionThatIsReadIsSettled) {
  Arrivals arrivals;
  const auto read = counter(3);
  ASSERT_TRUE(arrivals.open(1, read));
  EXPECT_TRUE(arrivals.require({1, {{1, 3}}}));
  EXPECT_FALSE(arrivals.require({1, {{1, 4}}}));
  EXPECT_FALSE(arrivals.settled());
  ++*read;
  EXPECT_TRUE(arrivals.settled());
}

TEST(Arrivals, MessagesOfAnEarlierConnectionMustBeRead) {
  Arrivals arrivals;
  const auto first = counter(), second = counter(7);
  ASSERT_TRUE(arrivals.open(1, first));
  ASSERT_TRUE(arrivals.open(2, second));
  EXPECT_FALSE(arrivals.require({2, {{1, 1}, {2, 7}}}));
  ++*first;
  EXPECT_TRUE(arrivals.settled());
}

TEST(Arrivals, ConnectionWhoseHelloIsNotReadYetIsWaitedFor) {
  Arrivals arrivals;
  ASSERT_TRUE(arrivals.open(2, counter(5)));
  EXPECT_FALSE(arrivals.require({2, {{1, 2}, {2, 5}}}));
  const auto late = counter();
  ASSERT_TRUE(arrivals.open(1, late));
  EXPECT_FALSE(arrivals.settled());
  *late += 2;
  EXPECT_TRUE(arrivals.settled());
}

TEST(Arrivals, ConnectionOnWhichNothingWasSentIsNotWaitedFor) {
  Arrivals arrivals;
  ASSERT_TRUE(arrivals.open(2, counter(1)));
  EXPECT_TRUE(arrivals.require({2, {{1, 0}, {2, 1}}}));
  // Its Hello is still accepted.
  EXPECT_TRUE(arrivals.open(1, counter()));
}

TEST(Arrivals, ConnectionThatEndedAtTheSenderUnreadStaysOut) {
  Arrivals arrivals;
  ASSERT_TRUE(arrivals.open(2, counter(1)));
  EXPECT_FALSE(arrivals.require({2, {{1, 4}, {2, 1}}}));
  EXPECT_EQ(arrivals.expected(), 1u);
  // A later report: the first connection has ended at the sender.
  arrivals.update({2, {{2, 1}}});
  EXPECT_TRUE(arrivals.settled());
  EXPECT_FALSE(arrivals.open(1, counter()));
}

TEST(Arrivals, ConnectionThatEndedAtTheSenderIsReadToItsEnd) {
  Arrivals arrivals;
  ASSERT_TRUE(arrivals.open(1, counter(9)));
  ASSERT_TRUE(arrivals.open(2, counter(1)));
  EXPECT_FALSE(arrivals.require({2, {{2, 1}}}));
  arrivals.close(1);
  EXPECT_TRUE(arrivals.settled());
}

TEST(Arrivals, ClosedConnectionIsSettledHoweverMuchWasSentOnIt) {
  Arrivals arrivals;
  ASSERT_TRUE(arrivals.open(1, counter(1)));
  ASSERT_TRUE(arrivals.open(2, counter(1)));
  EXPECT_FALSE(arrivals.require({2, {{1, 100}, {2, 1}}}));
  arrivals.close(1);
  EXPECT_TRUE(arrivals.settled());
  EXPECT_TRUE(arrivals.require({2, {{1, 100}, {2, 1}}}));
}

TEST(Arrivals, EarlierRequirementOutlivesALaterSmallerOne) {
  Arrivals arrivals;
  const auto first = counter(1), second = counter(1);
  ASSERT_TRUE(arrivals.open(1, first));
  ASSERT_TRUE(arrivals.open(2, second));
  EXPECT_FALSE(arrivals.require({2, {{1, 3}, {2, 1}}}));
  // An older report that arrives later.
  EXPECT_FALSE(arrivals.require({2, {{1, 1}, {2, 1}}}));
  *first += 2;
  EXPECT_TRUE(arrivals.settled());
}

TEST(Arrivals, OlderReportThatComesLateTakesNoConnectionBack) {
  Arrivals arrivals;
  ASSERT_TRUE(arrivals.open(3, counter()));
  // Connections 1 and 3 are open at the sender; connection 2 has ended.
  arrivals.update({3, {{1, 1}, {3, 1}}});
  arrivals.update({2, {{1, 1}, {2, 5}}});
  EXPECT_FALSE(arrivals.open(2, counter()));
  EXPECT_TRUE(arrivals.open(1, counter()));
}

TEST(Arrivals, NewerConnectionsAreNotEarlier) {
  Arrivals arrivals;
  ASSERT_TRUE(arrivals.open(1, counter(2)));
  ASSERT_TRUE(arrivals.open(2, counter()));
  EXPECT_TRUE(arrivals.require({1, {{1, 2}}}));
}

TEST(Arrivals, NumberIsUsedOnce) {
  Arrivals arrivals;
  EXPECT_FALSE(arrivals.open(0, counter()));
  EXPECT_TRUE(arrivals.open(1, counter()));
  EXPECT_FALSE(arrivals.open(1, counter()));
  arrivals.close(1);
  EXPECT_FALSE(arrivals.open(1, counter()));
  arrivals.update({1, {}});
  EXPECT_FALSE(arrivals.open(1, counter()));
  EXPECT_EQ(arrivals.connections(), 0u);
}

TEST(Arrivals, FalseReportOfConnectionsTakesNoMemory) {
  Arrivals arrivals;
  ASSERT_TRUE(arrivals.open(1, counter()));
  EXPECT_TRUE(arrivals.require({~uint64_t{0}, {{1, 0}}}));
  EXPECT_EQ(arrivals.expected(), 0u);
  EXPECT_FALSE(arrivals.open(2, counter()));
}

}  // namespace
}  // namespace gradwire::rpc
