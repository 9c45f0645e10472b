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

// Two threads of each worker are in barriers of the same list, and their arrivals overtake each other.
TEST(BarrierTable, AnEarlierBarrierMayBeginWhenALaterOneHasEnded) {
  BarrierTable table;
  (void)table.arrive({1, 2}, 1, 1, 11);
  EXPECT_EQ(tickets(table.arrive({1, 2}, 1, 2, 12)), (std::set<uint64_t>{11, 12}));
  EXPECT_TRUE(table.arrive({1, 2}, 0, 1, 21).empty());
  EXPECT_EQ(table.missing(21), BarrierTable::Members{2});
  const auto both = table.arrive({1, 2}, 0, 2, 22);
  ASSERT_EQ(tickets(both), (std::set<uint64_t>{21, 22}));
  for (const auto& answer : both) EXPECT_TRUE(answer.status.ok());
}

// An arrival at a barrier from before those that have ended: each way to end it answers its ticket.
TEST(BarrierTable, ABarrierBelowEndedOnesEndsInEachWay) {
  const auto begin = [](BarrierTable& table) {
    (void)table.arrive({1, 2}, 1, 1, 11);
    (void)table.arrive({1, 2}, 1, 2, 12);
    EXPECT_TRUE(table.arrive({1, 2}, 0, 1, 21).empty());
    EXPECT_EQ(table.missing(21), BarrierTable::Members{2});
  };
  const std::set<uint64_t> the_ticket = {21};
  BarrierTable given_up, lost, ended;
  begin(given_up);
  EXPECT_EQ(tickets(given_up.give_up(21, absl::CancelledError("own"), absl::CancelledError("others"))),
            the_ticket);
  begin(lost);
  EXPECT_EQ(tickets(lost.lose(2, absl::UnavailableError("lost"))), the_ticket);
  begin(ended);
  EXPECT_EQ(tickets(ended.end_all(absl::CancelledError("end"))), the_ticket);
  for (const BarrierTable* table : {&given_up, &lost, &ended}) EXPECT_EQ(table->waiting(), 0u);
}

// The first copy of an arrival may be served after its repetition.
TEST(BarrierTable, ALateCopyOfAnArrivalDoesNotOpenTheBarrierAgain) {
  BarrierTable table;
  uint64_t ticket = 0;
  for (uint64_t number = 0; number < 200; ++number) {
    (void)table.arrive({1, 2}, number, 1, ++ticket);
    EXPECT_EQ(table.arrive({1, 2}, number, 2, ++ticket).size(), 2u);
    for (uint64_t before = 0; before <= number; ++before) {
      ++ticket;
      EXPECT_EQ(tickets(table.arrive({1, 2}, before, 1, ticket)), std::set<uint64_t>{ticket});
    }
  }
  EXPECT_EQ(table.waiting(), 0u);
}

// The members 1 and 2 wait for 3, which is slow, and go on without it.
TEST(BarrierTable, AMemberThatHasMissedManyBarriersComesBack) {
  BarrierTable table;
  uint64_t ticket = 0;
  constexpr uint64_t kMissed = 5000;
  for (uint64_t number = 0; number < kMissed; ++number) {
    EXPECT_TRUE(table.arrive(kThree, number, 1, ++ticket).empty());
    EXPECT_TRUE(table.arrive(kThree, number, 2, ++ticket).empty());
    EXPECT_EQ(
        table.give_up(ticket, absl::CancelledError("own"), absl::DeadlineExceededError("2 gave up")).size(),
        2u);
  }
  for (uint64_t number = 0; number < kMissed; ++number) {
    const auto late = table.arrive(kThree, number, 3, ++ticket);
    ASSERT_EQ(tickets(late), std::set<uint64_t>{ticket});
    EXPECT_TRUE(absl::IsDeadlineExceeded(late[0].status)) << late[0].status;
  }
  EXPECT_TRUE(table.arrive(kThree, kMissed, 1, ++ticket).empty());
  EXPECT_TRUE(table.arrive(kThree, kMissed, 2, ++ticket).empty());
  const auto next = table.arrive(kThree, kMissed, 3, ++ticket);
  ASSERT_EQ(next.size(), 3u);
  for (const auto& answer : next) EXPECT_TRUE(answer.status.ok());
}

TEST(BarrierTable, TicketsOfAMemberAreBoundedOverAllLists) {
  BarrierTable table;
  uint64_t ticket = 0;
  for (; ticket < 1024; ++ticket) {
    EXPECT_TRUE(table.arrive({1, 2 + ticket % 7}, ticket, 1, ticket + 1).empty());
  }
  const auto refused = table.arrive({1, 100}, 0, 1, ++ticket);
  ASSERT_EQ(tickets(refused), std::set<uint64_t>{ticket});
  EXPECT_TRUE(absl::IsResourceExhausted(refused[0].status));
  // The repetition of an arrival takes the place of the first one, and the others go on.
  EXPECT_EQ(tickets(table.arrive({1, 2}, 0, 1, ++ticket)), std::set<uint64_t>{1});
  EXPECT_EQ(tickets(table.arrive({1, 2}, 0, 2, ticket + 1)), (std::set<uint64_t>{ticket, ticket + 1}));
  // One barrier has ended, so there is room for one.
  EXPECT_TRUE(table.arrive({1, 100}, 0, 1, 10'000).empty());
  EXPECT_EQ(table.arrive({1, 100}, 1, 1, 10'001).size(), 1u);
  EXPECT_EQ(table.end_all(absl::CancelledError("end")).size(), 1024u);
  EXPECT_TRUE(table.arrive({1, 100}, 1, 1, 10'002).empty());
}

TEST(BarrierTable, ANewListTakesThePlaceOfTheOneThatIsIdleLongest) {
  BarrierTable table;
  uint64_t ticket = 0;
  // Fails the barrier 0 of this list, so that it keeps an error.
  const auto fail = [&](const BarrierTable::Members& members) {
    EXPECT_TRUE(table.arrive(members, 0, members[0], ++ticket).empty());
    EXPECT_EQ(table.give_up(ticket, absl::CancelledError("own"), absl::CancelledError("others")).size(), 1u);
  };
  (void)table.arrive({1, 2}, 0, 1, ++ticket);
  const uint64_t open = ticket;
  fail({1, 3});
  fail({1, 4});
  for (uint64_t other = 0; other < (1 << 12); ++other) fail({5, 6 + other});
  EXPECT_EQ(table.lists(), std::size_t{1} << 12);
  // A list with an open barrier stays.
  EXPECT_EQ(table.missing(open), BarrierTable::Members{2});
  ++ticket;
  EXPECT_EQ(tickets(table.arrive({1, 2}, 0, 2, ticket)), (std::set<uint64_t>{open, ticket}));
  // The newest ones stay; the oldest one was dropped, so its barrier begins again.
  EXPECT_EQ(table.arrive({5, 5 + (1 << 12)}, 0, 5, ++ticket).size(), 1u);
  EXPECT_TRUE(table.arrive({1, 3}, 0, 1, ++ticket).empty());
  // Those of a lost member make room.
  (void)table.lose(5, absl::UnavailableError("lost"));
  EXPECT_LE(table.lists(), 2u);
}

TEST(BarrierTable, ListsWithOpenBarriersAreBounded) {
  BarrierTable table;
  uint64_t ticket = 0;
  for (uint64_t list = 0; list < (1 << 12); ++list) {
    const uint64_t from = 1 + list / 1024;
    EXPECT_TRUE(table.arrive({from, 1000 + list}, 0, from, ++ticket).empty());
  }
  const auto refused = table.arrive({900, 901}, 0, 900, ++ticket);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(refused[0].status));
  // Those in the table go on, and one that ends makes room.
  EXPECT_EQ(table.arrive({1, 1000}, 0, 1000, ++ticket).size(), 2u);
  EXPECT_TRUE(table.arrive({900, 901}, 0, 900, ++ticket).empty());
}

}  // namespace
}  // namespace gradwire::rpc
