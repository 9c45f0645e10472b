#include "gradwire/rpc/barrier/barrier_table.h"

#include <gtest/gtest.h>

#include <set>

namespace gradwire::rpc {
namespace {

const BarrierTable::Members kThree = {1, 2, 3};

std::set<uint64_t> tickets(const BarrierTable::Answers& answers) {
  std::set<uint64_t> found;
  for (const auto& answer : answers) EXPECT_TRUE(found.insert(answer.ticket).second) << answer.ticket;
  return found;
}

TEST(BarrierTable, AnswersWhenTheLastMemberArrives) {
  BarrierTable table;
  EXPECT_TRUE(table.arrive(kThree, 0, 1, 11).empty());
  EXPECT_TRUE(table.arrive(kThree, 0, 3, 13).empty());
  EXPECT_EQ(table.missing(11), BarrierTable::Members{2});
  const auto answers = table.arrive(kThree, 0, 2, 12);
  EXPECT_EQ(tickets(answers), (std::set<uint64_t>{11, 12, 13}));
  for (const auto& answer : answers) EXPECT_TRUE(answer.status.ok());
  EXPECT_EQ(table.waiting(), 0u);
  EXPECT_TRUE(table.missing(11).empty());
}

TEST(BarrierTable, ListsAndNumbersAreApart) {
  BarrierTable table;
  EXPECT_TRUE(table.arrive(kThree, 0, 1, 11).empty());
  EXPECT_TRUE(table.arrive({1, 2}, 0, 2, 12).empty());
  EXPECT_TRUE(table.arrive(kThree, 1, 2, 22).empty());
  EXPECT_EQ(tickets(table.arrive({1, 2}, 0, 1, 21)), (std::set<uint64_t>{12, 21}));
  EXPECT_EQ(table.waiting(), 2u);
}

TEST(BarrierTable, AnAnswerThatWasLostIsGivenAgain) {
  BarrierTable table;
  (void)table.arrive(kThree, 0, 1, 11);
  (void)table.arrive(kThree, 0, 2, 12);
  (void)table.arrive(kThree, 0, 3, 13);
  auto again = table.arrive(kThree, 0, 2, 14);
  ASSERT_EQ(tickets(again), std::set<uint64_t>{14});
  EXPECT_TRUE(again[0].status.ok());
  // Others have gone on; member 2 has not.
  (void)table.arrive(kThree, 1, 1, 21);
  again = table.arrive(kThree, 0, 2, 15);
  ASSERT_EQ(tickets(again), std::set<uint64_t>{15});
  EXPECT_TRUE(again[0].status.ok());
}

TEST(BarrierTable, ARepetitionTakesThePlaceOfTheFirstArrival) {
  BarrierTable table;
  (void)table.arrive({1, 2}, 0, 1, 11);
  const auto replaced = table.arrive({1, 2}, 0, 1, 12);
  ASSERT_EQ(tickets(replaced), std::set<uint64_t>{11});
  EXPECT_TRUE(absl::IsCancelled(replaced[0].status));
  EXPECT_EQ(tickets(table.arrive({1, 2}, 0, 2, 13)), (std::set<uint64_t>{12, 13}));
}

TEST(BarrierTable, OneThatGivesUpFailsTheBarrierForAll) {
  BarrierTable table;
  (void)table.arrive(kThree, 0, 1, 11);
  (void)table.arrive(kThree, 0, 2, 12);
  const auto answers =
      table.give_up(11, absl::DeadlineExceededError("3 is missing"), absl::DeadlineExceededError("1 left"));
  ASSERT_EQ(tickets(answers), (std::set<uint64_t>{11, 12}));
  for (const auto& answer : answers) {
    EXPECT_EQ(answer.status.message(), answer.ticket == 11 ? "3 is missing" : "1 left");
  }
  EXPECT_TRUE(table.give_up(11, absl::OkStatus(), absl::OkStatus()).empty());
  const auto late = table.arrive(kThree, 0, 3, 13);
  ASSERT_EQ(tickets(late), std::set<uint64_t>{13});
  EXPECT_EQ(late[0].status.message(), "1 left");
  // The next barrier is not concerned.
  (void)table.arrive(kThree, 1, 1, 21);
  (void)table.arrive(kThree, 1, 2, 22);
  const auto next = table.arrive(kThree, 1, 3, 23);
  ASSERT_EQ(next.size(), 3u);
  EXPECT_TRUE(next[0].status.ok());
}

TEST(BarrierTable, ALostMemberEndsItsBarriers) {
  BarrierTable table;
  (void)table.arrive(kThree, 0, 1, 11);
  (void)table.arrive({1, 2}, 0, 1, 12);
  const auto answers = table.lose(3, absl::UnavailableError("3 died"));
  ASSERT_EQ(tickets(answers), std::set<uint64_t>{11});
  EXPECT_TRUE(absl::IsUnavailable(answers[0].status));
  EXPECT_EQ(table.waiting(), 1u);
  EXPECT_EQ(tickets(table.end_all(absl::CancelledError("end"))), std::set<uint64_t>{12});
  EXPECT_EQ(table.waiting(), 0u);
}

TEST(BarrierTable, BarriersThatNeverEndAreBounded) {
  BarrierTable table;
  for (uint64_t number = 0; number < BarrierTable::kMostOpen; ++number) {
    EXPECT_TRUE(table.arrive({1, 2}, number, 1, number + 1).empty());
  }
  const auto refused = table.arrive({1, 2}, BarrierTable::kMostOpen, 1, 1'000'000);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(refused[0].status));
}

TEST(BarrierTable, ListsAreBounded) {
  BarrierTable table;
  for (uint64_t other = 0; other < BarrierTable::kMostLists; ++other) {
    EXPECT_TRUE(table.arrive({1, 2 + other}, 0, 1, other + 1).empty());
  }
  const auto refused = table.arrive({0, 1}, 0, 1, 1'000'000);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(refused[0].status));
  // Those in the table go on, and a list that is lost makes room.
  EXPECT_EQ(table.arrive({1, 2}, 0, 2, 2'000'000).size(), 2u);
  EXPECT_EQ(table.lose(3, absl::UnavailableError("lost")).size(), 1u);
  EXPECT_TRUE(table.arrive({0, 1}, 0, 1, 3'000'000).empty());
}

TEST(BarrierTable, EndedBarriersThatNobodyComesToAreBounded) {
  BarrierTable table;
  std::size_t refused = 0;
  for (uint64_t number = 0; number < 3 * BarrierTable::kMostOpen; ++number) {
    for (const auto& answer : table.arrive({1, 2}, number, 1, number + 1)) {
      if (absl::IsResourceExhausted(answer.status)) ++refused;
    }
    (void)table.give_up(number + 1, absl::CancelledError("own"), absl::CancelledError("others"));
  }
  EXPECT_EQ(refused, BarrierTable::kMostOpen);
}

}  // namespace
}  // namespace gradwire::rpc
