#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "gradwire/rpc/device/incoming_transfers.h"

namespace gradwire::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Read = ArrivedTransfers::Read;
using Reclaim = ArrivedTransfers::Reclaim;

constexpr uint64_t kSenderA = 0xA, kSenderB = 0xB;

TEST(ArrivedTransfers, AreReadOnceAfterTheirMessageHasArrived) {
  ArrivedTransfers transfers;
  EXPECT_EQ(transfers.begin_read(kSenderA, 1), Read::kUnknown);
  transfers.arrive(kSenderA, 1);
  EXPECT_EQ(transfers.begin_read(kSenderB, 1), Read::kUnknown);
  EXPECT_EQ(transfers.begin_read(kSenderA, 1), Read::kAllowed);
  EXPECT_EQ(transfers.begin_read(kSenderA, 1), Read::kUnknown);
  EXPECT_EQ(transfers.reading(), 1u);
  EXPECT_THAT(transfers.end_read(kSenderA, 1), IsEmpty());
  EXPECT_EQ(transfers.begin_read(kSenderA, 1), Read::kUnknown);
  EXPECT_FALSE(transfers.drop(kSenderA, 1));
  EXPECT_EQ(transfers.arrived(), 0u);
}

TEST(ArrivedTransfers, ADroppedMessageIsReportedUnlessItWasRead) {
  ArrivedTransfers transfers;
  transfers.arrive(kSenderA, 1);
  EXPECT_TRUE(transfers.drop(kSenderA, 1));
  EXPECT_FALSE(transfers.drop(kSenderA, 1));
  transfers.arrive(kSenderA, 2);
  ASSERT_EQ(transfers.begin_read(kSenderA, 2), Read::kAllowed);
  EXPECT_FALSE(transfers.drop(kSenderA, 2));
  EXPECT_EQ(transfers.arrived(), 1u);
  transfers.end_read(kSenderA, 2);
  EXPECT_EQ(transfers.arrived(), 0u);
}

TEST(ArrivedTransfers, AReclaimedTransferIsNotReadWhereverItsMessageIs) {
  ArrivedTransfers transfers;
  transfers.arrive(kSenderA, 1);
  EXPECT_EQ(transfers.reclaim(kSenderA, {1, 2}, /*settled=*/false, 100), Reclaim::kAnswer);
  EXPECT_EQ(transfers.begin_read(kSenderA, 1), Read::kRefused);
  EXPECT_FALSE(transfers.drop(kSenderA, 1));
  transfers.arrive(kSenderA, 2);
  EXPECT_EQ(transfers.begin_read(kSenderA, 2), Read::kRefused);
  EXPECT_EQ(transfers.remembered(), 1u);
  transfers.settle(kSenderA);
  EXPECT_EQ(transfers.remembered(), 0u);
  // The message that arrived before the messages settled stays refused.
  EXPECT_EQ(transfers.begin_read(kSenderA, 2), Read::kRefused);
  EXPECT_FALSE(transfers.drop(kSenderA, 2));
  // The same number of another worker.
  transfers.arrive(kSenderB, 2);
  EXPECT_EQ(transfers.begin_read(kSenderB, 2), Read::kAllowed);
}

TEST(ArrivedTransfers, NothingIsRememberedIfEverythingHasArrived) {
  ArrivedTransfers transfers;
  EXPECT_EQ(transfers.reclaim(kSenderA, {1, 2}, /*settled=*/true, 100), Reclaim::kAnswer);
  EXPECT_EQ(transfers.remembered(), 0u);
}

TEST(ArrivedTransfers, AReclaimIsAnsweredWhenTheReadsHaveEnded) {
  ArrivedTransfers transfers;
  transfers.arrive(kSenderA, 1);
  transfers.arrive(kSenderA, 2);
  transfers.arrive(kSenderB, 1);
  ASSERT_EQ(transfers.begin_read(kSenderA, 1), Read::kAllowed);
  ASSERT_EQ(transfers.begin_read(kSenderA, 2), Read::kAllowed);
  ASSERT_EQ(transfers.begin_read(kSenderB, 1), Read::kAllowed);
  EXPECT_EQ(transfers.reclaim(kSenderA, {1, 2, 3}, false, 100), Reclaim::kLater);
  EXPECT_EQ(transfers.reclaim(kSenderA, {2}, false, 101), Reclaim::kLater);
  EXPECT_THAT(transfers.end_read(kSenderB, 1), IsEmpty());
  EXPECT_THAT(transfers.end_read(kSenderA, 1), IsEmpty());
  EXPECT_THAT(transfers.end_read(kSenderA, 2), ::testing::UnorderedElementsAre(100, 101));
}

TEST(ArrivedTransfers, NothingOfALostSenderIsRead) {
  ArrivedTransfers transfers;
  for (uint64_t i = 1; i <= 2; ++i) transfers.arrive(kSenderA, i);
  ASSERT_EQ(transfers.begin_read(kSenderA, 1), Read::kAllowed);
  ASSERT_EQ(transfers.reclaim(kSenderA, {1, 7}, false, 100), Reclaim::kLater);
  EXPECT_THAT(transfers.lose(kSenderA), ElementsAre(100));
  EXPECT_EQ(transfers.begin_read(kSenderA, 2), Read::kRefused);
  EXPECT_FALSE(transfers.drop(kSenderA, 2));
  EXPECT_THAT(transfers.end_read(kSenderA, 1), IsEmpty());
  EXPECT_EQ(transfers.arrived() + transfers.remembered() + transfers.reading(), 0u);
}

TEST(ArrivedTransfers, AReclaimOfALostSenderIsNotRemembered) {
  ArrivedTransfers transfers;
  EXPECT_THAT(transfers.lose(kSenderA), IsEmpty());
  EXPECT_EQ(transfers.reclaim(kSenderA, {1, 2}, false, 100), Reclaim::kAnswer);
  EXPECT_EQ(transfers.remembered(), 0u);
  transfers.arrive(kSenderA, 1);
  EXPECT_EQ(transfers.begin_read(kSenderA, 1), Read::kRefused);
}

TEST(ArrivedTransfers, NothingIsReadAfterClose) {
  ArrivedTransfers transfers;
  transfers.arrive(kSenderA, 1);
  transfers.close();
  EXPECT_EQ(transfers.begin_read(kSenderA, 1), Read::kRefused);
  EXPECT_TRUE(transfers.drop(kSenderA, 1));
  // A message that arrives later is not in the table.
  EXPECT_EQ(transfers.begin_read(kSenderA, 2), Read::kRefused);
}

TEST(ArrivedTransfers, TheNumberOfRefusalsIsBounded) {
  ArrivedTransfers transfers;
  std::vector<uint64_t> numbers(ArrivedTransfers::kMaxRefused);
  std::iota(numbers.begin(), numbers.end(), 1);
  EXPECT_EQ(transfers.reclaim(kSenderA, numbers, false, 100), Reclaim::kAnswer);
  EXPECT_EQ(transfers.reclaim(kSenderA, {0}, false, 101), Reclaim::kTooMany);
  EXPECT_EQ(transfers.remembered(), ArrivedTransfers::kMaxRefused);
}

}  // namespace
}  // namespace gradwire::rpc
