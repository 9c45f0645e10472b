#include "gradwire/rpc/device/transfer_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gradwire::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Consumed = TransferTable::Consumed;

constexpr uint64_t kA = 0xA, kB = 0xB;

TEST(TransferTable, NumbersRiseForEachReceiver) {
  TransferTable table;
  EXPECT_EQ(table.begin(kA), 1u);
  EXPECT_EQ(table.begin(kA), 2u);
  EXPECT_EQ(table.begin(kB), 1u);
  EXPECT_TRUE(table.contains(kA, 2));
  EXPECT_FALSE(table.contains(kB, 2));
  EXPECT_EQ(table.size(), 3u);
}

TEST(TransferTable, ConsumedEndsATransferOnce) {
  TransferTable table;
  (void)table.begin(kA);
  EXPECT_EQ(table.consumed(kA, 1), Consumed::kEnded);
  EXPECT_EQ(table.consumed(kA, 1), Consumed::kEndedBefore);
  EXPECT_EQ(table.size(), 0u);
}

TEST(TransferTable, NumbersThatWereNeverUsedAreUnknown) {
  TransferTable table;
  EXPECT_EQ(table.consumed(kA, 1), Consumed::kUnknown);
  (void)table.begin(kA);
  EXPECT_EQ(table.consumed(kA, 0), Consumed::kUnknown);
  EXPECT_EQ(table.consumed(kA, 2), Consumed::kUnknown);
  EXPECT_EQ(table.consumed(kB, 1), Consumed::kUnknown);
  EXPECT_EQ(table.size(), 1u);
}

TEST(TransferTable, AbandonedTransfersAreKeptUntilTheReclaimIsAnswered) {
  TransferTable table;
  for (int i = 0; i < 3; ++i) (void)table.begin(kA);
  EXPECT_TRUE(table.abandon(kA, 1));
  EXPECT_FALSE(table.abandon(kA, 1));
  EXPECT_THAT(table.begin_reclaim(kA), ElementsAre(1));
  EXPECT_TRUE(table.contains(kA, 1));
  // The next Reclaim waits for the answer of the first.
  EXPECT_TRUE(table.abandon(kA, 3));
  EXPECT_THAT(table.begin_reclaim(kA), IsEmpty());
  EXPECT_THAT(table.reclaimed(kA), ElementsAre(1));
  EXPECT_FALSE(table.contains(kA, 1));
  EXPECT_THAT(table.begin_reclaim(kA), ElementsAre(3));
  EXPECT_THAT(table.reclaimed(kA), ElementsAre(3));
  EXPECT_TRUE(table.contains(kA, 2));
}

TEST(TransferTable, AReportDuringAReclaimEndsTheTransferOnce) {
  TransferTable table;
  (void)table.begin(kA);
  (void)table.begin(kA);
  table.abandon(kA, 1);
  table.abandon(kA, 2);
  (void)table.begin_reclaim(kA);
  EXPECT_EQ(table.consumed(kA, 1), Consumed::kEnded);
  EXPECT_THAT(table.reclaimed(kA), ElementsAre(2));
  EXPECT_EQ(table.consumed(kA, 2), Consumed::kEndedBefore);
  EXPECT_FALSE(table.abandon(kA, 1));
}

// The answer of the first Reclaim must not end transfers that were abandoned after it was sent. The receiver
// may still read those.
TEST(TransferTable, ReportsOfAllTransfersOfAReclaimDoNotBeginTheNext) {
  TransferTable table;
  for (int i = 0; i < 3; ++i) (void)table.begin(kA);
  table.abandon(kA, 1);
  EXPECT_THAT(table.begin_reclaim(kA), ElementsAre(1));
  EXPECT_EQ(table.consumed(kA, 1), Consumed::kEnded);
  table.abandon(kA, 2);
  EXPECT_THAT(table.begin_reclaim(kA), IsEmpty());
  EXPECT_THAT(table.reclaimed(kA), IsEmpty());
  EXPECT_TRUE(table.contains(kA, 2));
  EXPECT_THAT(table.begin_reclaim(kA), ElementsAre(2));
  EXPECT_THAT(table.reclaimed(kA), ElementsAre(2));
  // Nothing is abandoned, so no Reclaim begins.
  EXPECT_THAT(table.begin_reclaim(kA), IsEmpty());
  table.abandon(kA, 3);
  EXPECT_THAT(table.begin_reclaim(kA), ElementsAre(3));
}

TEST(TransferTable, ALostReceiverEndsItsTransfersAndGetsNone) {
  TransferTable table;
  for (int i = 0; i < 3; ++i) (void)table.begin(kA);
  (void)table.begin(kB);
  table.abandon(kA, 2);
  (void)table.begin_reclaim(kA);
  table.abandon(kA, 3);
  EXPECT_THAT(table.lose(kA), ::testing::UnorderedElementsAre(1, 2, 3));
  EXPECT_EQ(table.begin(kA), std::nullopt);
  EXPECT_THAT(table.reclaimed(kA), IsEmpty());
  EXPECT_EQ(table.size(), 1u);
}

TEST(TransferTable, TheNumberOfOpenTransfersIsBounded) {
  TransferTable table;
  for (std::size_t i = 0; i < TransferTable::kMaxOpen; ++i) ASSERT_TRUE(table.begin(kA).has_value());
  EXPECT_EQ(table.begin(kA), std::nullopt);
  EXPECT_TRUE(table.begin(kB).has_value());
  (void)table.consumed(kA, 5);
  EXPECT_EQ(table.begin(kA), TransferTable::kMaxOpen + 1);
}

}  // namespace
}  // namespace gradwire::rpc
