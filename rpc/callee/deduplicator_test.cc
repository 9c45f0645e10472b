#include "gradwire/rpc/callee/deduplicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace gradwire::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Route = Deduplicator::Route;
using Verdict = Deduplicator::Verdict;

constexpr uint64_t kCaller = 7;

absl::Time at(int seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

Deduplicator::Answer answer(int value) { return std::make_shared<const int>(value); }
int value_of(const Deduplicator::Answer& kept) { return *std::static_pointer_cast<const int>(kept); }

TEST(Deduplicator, RepetitionOfARunningRequestIsAttached) {
  Deduplicator requests((RetryOptions()));
  EXPECT_EQ(requests.arrive(kCaller, 1, 0, {10, 5}, at(0)).verdict, Verdict::kRun);
  auto repetition = requests.arrive(kCaller, 1, 0, {11, 5}, at(1));
  EXPECT_EQ(repetition.verdict, Verdict::kAttached);
  EXPECT_EQ(repetition.before, (Route{10, 5}));
  EXPECT_EQ(requests.running(), 1u);
  // The answer goes to the newest link.
  EXPECT_EQ(requests.end(kCaller, 1, answer(1), 100, at(2)), (Route{11, 5}));
  EXPECT_EQ(requests.running(), 0u);
}

TEST(Deduplicator, OvertakenAttemptDoesNotGetTheAnswer) {
  Deduplicator requests((RetryOptions()));
  EXPECT_EQ(requests.arrive(kCaller, 1, 0, {12, 5, 3}, at(0)).verdict, Verdict::kRun);
  EXPECT_EQ(requests.arrive(kCaller, 1, 0, {10, 5, 2}, at(0)).verdict, Verdict::kStale);
  EXPECT_EQ(requests.end(kCaller, 1, answer(1), 1, at(0)), (Route{12, 5, 3}));
}

TEST(Deduplicator, RepetitionOfAnAnsweredRequestGetsTheAnswer) {
  Deduplicator requests((RetryOptions()));
  requests.arrive(kCaller, 1, 0, {10, 5}, at(0));
  requests.end(kCaller, 1, answer(42), 100, at(0));
  for (int i = 0; i < 3; ++i) {
    auto repetition = requests.arrive(kCaller, 1, 0, {11, 5}, at(1));
    ASSERT_EQ(repetition.verdict, Verdict::kAnswered);
    EXPECT_EQ(value_of(repetition.answer), 42);
  }
  EXPECT_EQ(requests.end(kCaller, 1, answer(43), 100, at(2)), std::nullopt);
}

TEST(Deduplicator, CallersAreKeptApart) {
  Deduplicator requests((RetryOptions()));
  EXPECT_EQ(requests.arrive(1, 5, 0, {10, 1}, at(0)).verdict, Verdict::kRun);
  EXPECT_EQ(requests.arrive(2, 5, 0, {11, 1}, at(0)).verdict, Verdict::kRun);
  EXPECT_EQ(requests.end(1, 5, answer(1), 1, at(0)), (Route{10, 1}));
  EXPECT_EQ(requests.arrive(2, 5, 0, {12, 1}, at(0)).verdict, Verdict::kAttached);
}

TEST(Deduplicator, WatermarkDropsAnswersAndMakesRepetitionsStale) {
  Deduplicator requests((RetryOptions()));
  for (uint64_t id : {1, 2, 3}) {
    requests.arrive(kCaller, id, 0, {10, id}, at(0));
    requests.end(kCaller, id, answer(1), 10, at(0));
  }
  EXPECT_EQ(requests.answers(), 3u);
  EXPECT_EQ(requests.bytes(), 30u);
  requests.arrive(kCaller, 4, 3, {10, 4}, at(0));
  EXPECT_EQ(requests.answers(), 1u);
  EXPECT_EQ(requests.bytes(), 10u);
  EXPECT_EQ(requests.take_dropped().size(), 2u);
  EXPECT_EQ(requests.arrive(kCaller, 2, 0, {10, 2}, at(0)).verdict, Verdict::kStale);
  EXPECT_EQ(requests.arrive(kCaller, 3, 0, {10, 3}, at(0)).verdict, Verdict::kAnswered);
  // The watermark never falls.
  requests.arrive(kCaller, 5, 1, {10, 5}, at(0));
  EXPECT_EQ(requests.arrive(kCaller, 2, 1, {10, 2}, at(0)).verdict, Verdict::kStale);
}

TEST(Deduplicator, WatermarkNamesUnwantedRunningRequestsOnce) {
  Deduplicator requests((RetryOptions()));
  requests.arrive(kCaller, 1, 0, {10, 1}, at(0));
  EXPECT_THAT(requests.arrive(kCaller, 2, 2, {10, 2}, at(0)).unwanted, ElementsAre(Route{10, 1}));
  EXPECT_THAT(requests.arrive(kCaller, 3, 2, {10, 3}, at(0)).unwanted, IsEmpty());
  // Its answer is sent, but not kept.
  EXPECT_EQ(requests.end(kCaller, 1, answer(1), 1, at(0)), (Route{10, 1}));
  EXPECT_EQ(requests.answers(), 0u);
  EXPECT_EQ(requests.running(), 2u);
}

TEST(Deduplicator, AnswersAreBoundedInNumber) {
  Deduplicator requests(RetryOptions{.max_answers = 2});
  for (uint64_t id : {1, 2, 3}) {
    requests.arrive(kCaller, id, 0, {10, id}, at(0));
    requests.end(kCaller, id, answer(static_cast<int>(id)), 10, at(0));
  }
  EXPECT_EQ(requests.answers(), 2u);
  // The oldest answer was dropped: its request would run repetition.
  EXPECT_EQ(requests.arrive(kCaller, 1, 0, {10, 1}, at(0)).verdict, Verdict::kRun);
  EXPECT_EQ(requests.arrive(kCaller, 3, 0, {10, 3}, at(0)).verdict, Verdict::kAnswered);
}

TEST(Deduplicator, AnswersAreBoundedInBytes) {
  Deduplicator requests(RetryOptions{.max_answer_bytes = 100});
  requests.arrive(kCaller, 1, 0, {10, 1}, at(0));
  requests.end(kCaller, 1, answer(1), 60, at(0));
  requests.arrive(kCaller, 2, 0, {10, 2}, at(0));
  requests.end(kCaller, 2, answer(2), 101, at(0));
  // An answer that is larger than the limit is not kept, and drops no other answer.
  EXPECT_EQ(requests.bytes(), 60u);
  requests.arrive(kCaller, 3, 0, {10, 3}, at(0));
  requests.end(kCaller, 3, answer(3), 50, at(0));
  EXPECT_EQ(requests.bytes(), 50u);
  EXPECT_EQ(requests.take_dropped().size(), 2u);
}

// The oldest answer belongs to a request above the watermark, so the watermark never drops it.
TEST(Deduplicator, IdsOfAnswersBelowTheWatermarkAreForgotten) {
  Deduplicator requests((RetryOptions()));
  constexpr uint64_t kNewest = 1000;
  requests.arrive(kCaller, kNewest, 0, {10, kNewest}, at(0));
  requests.end(kCaller, kNewest, answer(0), 1, at(0));
  for (uint64_t id = 1; id < kNewest; ++id) {
    requests.arrive(kCaller, id, id, {10, id}, at(0));
    requests.end(kCaller, id, answer(0), 1, at(0));
    ASSERT_LE(requests.remembered(), 2 * requests.answers() + 16) << id;
  }
  EXPECT_EQ(requests.answers(), 2u);
}

TEST(Deduplicator, AnswersAreBoundedInTime) {
  Deduplicator requests(RetryOptions{.keep_answers = absl::Seconds(10)});
  requests.arrive(1, 1, 0, {10, 1}, at(0));
  requests.end(1, 1, answer(1), 1, at(0));
  requests.arrive(2, 1, 0, {11, 1}, at(0));
  requests.end(2, 1, answer(1), 1, at(4));
  EXPECT_EQ(requests.expire(at(9)), at(10));
  EXPECT_EQ(requests.expire(at(10)), at(14));
  EXPECT_EQ(requests.answers(), 1u);
  EXPECT_EQ(requests.expire(at(14)), absl::InfiniteFuture());
  EXPECT_EQ(requests.answers(), 0u);
}

TEST(Deduplicator, RepetitionRunsIfTheAnswerWasNotKept) {
  Deduplicator requests((RetryOptions()));
  requests.arrive(kCaller, 1, 0, {10, 1}, at(0));
  EXPECT_EQ(requests.end(kCaller, 1, nullptr, 0, at(0)), (Route{10, 1}));
  EXPECT_EQ(requests.arrive(kCaller, 1, 0, {11, 1}, at(0)).verdict, Verdict::kRun);
}

TEST(Deduplicator, DeadCallerIsForgotten) {
  Deduplicator requests((RetryOptions()));
  requests.arrive(kCaller, 1, 0, {10, 1}, at(0));
  requests.arrive(kCaller, 2, 0, {10, 2}, at(0));
  requests.end(kCaller, 2, answer(2), 10, at(0));
  EXPECT_THAT(requests.forget(kCaller), ElementsAre(Route{10, 1}));
  EXPECT_THAT(requests.forget(kCaller), IsEmpty());
  EXPECT_EQ(requests.answers(), 0u);
  EXPECT_EQ(requests.bytes(), 0u);
  EXPECT_EQ(requests.end(kCaller, 1, answer(1), 10, at(0)), (Route{10, 1}));
  EXPECT_EQ(requests.answers(), 0u);
  EXPECT_EQ(requests.running(), 0u);
  EXPECT_EQ(requests.take_dropped().size(), 2u);
}

// A caller loses requests and answers at random, and repeats them. No request runs twice while it is
// remembered, each gets its own answer, and the memory stays within the bounds.
TEST(Deduplicator, RandomRepetitionsRunOnceAndLeaveNothing) {
  for (int seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    auto one_in = [&](int n) { return random() % n == 0; };
    Deduplicator requests(RetryOptions{.max_answers = 1'000});
    std::set<uint64_t> open;
    std::set<uint64_t> running;
    std::set<uint64_t> ran;
    uint64_t next = 1;
    uint64_t link = 1;
    auto send = [&](uint64_t id) {
      const uint64_t watermark = *open.begin();
      auto arrival = requests.arrive(kCaller, id, watermark, {++link, id}, at(0));
      switch (arrival.verdict) {
        case Verdict::kRun:
          EXPECT_TRUE(ran.insert(id).second) << "ran twice: " << id << ", seed " << seed;
          running.insert(id);
          break;
        case Verdict::kAttached:
          EXPECT_TRUE(running.contains(id));
          break;
        case Verdict::kAnswered:
          EXPECT_EQ(value_of(arrival.answer), static_cast<int>(id));
          if (!one_in(3)) open.erase(id);
          break;
        case Verdict::kStale:
          ADD_FAILURE() << "a request that its caller wants was refused as stale, seed " << seed;
      }
    };
    for (int step = 0; step < 300; ++step) {
      if (open.size() < 8 && one_in(2)) {
        open.insert(next++);
        if (!one_in(4)) send(next - 1);
      } else if (!open.empty() && one_in(2)) {
        auto some = std::next(open.begin(), static_cast<int>(random() % open.size()));
        send(*some);
      } else if (!running.empty()) {
        const uint64_t id = *std::next(running.begin(), static_cast<int>(random() % running.size()));
        running.erase(id);
        EXPECT_TRUE(requests.end(kCaller, id, answer(static_cast<int>(id)), 1, at(0)).has_value());
        if (!one_in(3)) open.erase(id);
      }
    }
    while (!open.empty()) {
      for (uint64_t id : running) {
        EXPECT_TRUE(requests.end(kCaller, id, answer(static_cast<int>(id)), 1, at(0)).has_value());
      }
      running.clear();
      send(*open.begin());
    }
    for (uint64_t id : running) requests.end(kCaller, id, answer(static_cast<int>(id)), 1, at(0));
    open.insert(next);
    requests.arrive(kCaller, next, next, {++link, next}, at(0));
    EXPECT_EQ(requests.answers(), 0u);
    EXPECT_EQ(requests.running(), 1u);
  }
}

}  // namespace
}  // namespace gradwire::rpc
