#include "gradwire/rpc/caller/pending_calls.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

PendingCalls::Taken call_to(uint64_t incarnation, absl::Time deadline = absl::InfiniteFuture()) {
  auto call = std::make_unique<PendingCall>();
  call->incarnation = incarnation;
  call->deadline = deadline;
  return call;
}

TEST(PendingCalls, IsTakenOnce) {
  PendingCalls calls;
  const uint64_t id = calls.next_id();
  calls.add(id, call_to(5));
  EXPECT_NE(calls.take(id), nullptr);
  EXPECT_EQ(calls.take(id), nullptr);
  EXPECT_EQ(calls.size(), 0u);
  EXPECT_EQ(calls.unfinished(), 1u);
  calls.finished();
  EXPECT_EQ(calls.unfinished(), 0u);
}

TEST(PendingCalls, AnswerOfAnotherWorkerIsNotTaken) {
  PendingCalls calls;
  calls.add(1, call_to(5));
  EXPECT_EQ(calls.take_from(1, 6), nullptr);
  EXPECT_NE(calls.take_from(1, 5), nullptr);
}

TEST(PendingCalls, ClosedLinkTakesItsCalls) {
  PendingCalls calls;
  alignas(16) static char places[2][16];
  auto link = [&](int i) {
    return std::shared_ptr<Link>(std::shared_ptr<void>(), reinterpret_cast<Link*>(places[i]));
  };
  for (uint64_t id = 1; id <= 3; ++id) {
    PendingCalls::Taken call = call_to(5);
    call->link = link(id == 3 ? 1 : 0);
    calls.add(id, std::move(call));
  }
  EXPECT_EQ(calls.take_link(*reinterpret_cast<Link*>(places[0])).calls.size(), 2u);
  EXPECT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls.sent(1, 70), nullptr);
  EXPECT_EQ(calls.take_all().size(), 1u);
}

TEST(PendingCalls, RepeatableCallOutlivesItsLink) {
  PendingCalls calls;
  alignas(16) static char places[2][16];
  auto link = [&](int i) {
    return std::shared_ptr<Link>(std::shared_ptr<void>(), reinterpret_cast<Link*>(places[i]));
  };
  auto repeatable = call_to(5);
  repeatable->repeatable = std::make_shared<RepeatableRequest>();
  repeatable->sending = false;
  calls.add(1, std::move(repeatable));
  EXPECT_EQ(calls.attempt(1, /*begins=*/true)->number, 1);
  ASSERT_TRUE(calls.attach(1, link(0)));
  // The link closes while the call is being sent, and the send fails, too: exactly one of the two threads
  // handles the call.
  PendingCalls::Broken broken = calls.take_link(*link(0));
  EXPECT_TRUE(broken.calls.empty());
  EXPECT_EQ(broken.repeatable, std::vector<uint64_t>{1});
  EXPECT_EQ(calls.sent(1, 0), nullptr);
  EXPECT_FALSE(calls.detach(1, *link(0)));
  EXPECT_TRUE(calls.take_link(*link(0)).repeatable.empty());
  EXPECT_EQ(calls.attempt(1, /*begins=*/true)->number, 2);
  ASSERT_TRUE(calls.attach(1, link(1)));
  EXPECT_TRUE(calls.detach(1, *link(1)));
  EXPECT_TRUE(calls.take_worker(6).empty());
  EXPECT_EQ(calls.take_worker(5).size(), 1u);
  EXPECT_FALSE(calls.attempt(1, /*begins=*/false).has_value());
  EXPECT_FALSE(calls.attach(1, link(1)));
}

TEST(PendingCalls, CallThatIsCancelledWhileItIsSentIsLeftToItsSender) {
  PendingCalls calls;
  calls.add(1, call_to(5));
  EXPECT_EQ(calls.give_up(1, absl::CancelledError("requested by the test")), nullptr);
  EXPECT_EQ(calls.size(), 1u);
  PendingCalls::Taken call = calls.sent(1, 7);
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->given_up, absl::CancelledError("requested by the test"));
  EXPECT_EQ(call->ticket, 7u);

  calls.add(2, call_to(5));
  EXPECT_EQ(calls.sent(2, 8), nullptr);
  EXPECT_NE(calls.give_up(2, absl::CancelledError("requested by the test")), nullptr);
}

TEST(PendingCalls, OneAlarmServesAllDeadlines) {
  const absl::Time start = absl::UnixEpoch();
  PendingCalls calls;
  EXPECT_EQ(calls.add(1, call_to(5)), absl::InfiniteFuture());
  EXPECT_EQ(calls.add(2, call_to(5, start + absl::Seconds(10))), start + absl::Seconds(10));
  EXPECT_EQ(calls.add(3, call_to(5, start + absl::Seconds(20))), absl::InfiniteFuture());
  EXPECT_EQ(calls.add(4, call_to(5, start + absl::Seconds(5))), start + absl::Seconds(5));
  for (uint64_t id = 1; id <= 4; ++id) calls.sent(id, id);

  PendingCalls::Expired expired = calls.take_expired(start + absl::Seconds(5), start + absl::Seconds(5));
  ASSERT_EQ(expired.calls.size(), 1u);
  EXPECT_EQ(expired.calls[0].first, 4u);
  EXPECT_EQ(expired.next, start + absl::Seconds(10));
  // An alarm that another one has replaced does nothing.
  expired = calls.take_expired(start + absl::Seconds(5), start + absl::Seconds(30));
  EXPECT_TRUE(expired.calls.empty());
  EXPECT_EQ(expired.next, absl::InfiniteFuture());
  EXPECT_EQ(calls.take_expired(start + absl::Seconds(10), start + absl::Seconds(30)).calls.size(), 2u);
  EXPECT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls.add(5, call_to(5, start + absl::Seconds(40))), start + absl::Seconds(40));
}

TEST(PendingCalls, AnEarlierAlarmServesTheCallsOfOneThatWasLost) {
  PendingCalls calls;
  const absl::Time now = absl::UnixEpoch();
  const absl::Time late = now + absl::Seconds(2);
  EXPECT_EQ(calls.add(1, call_to(5, late)), late);
  const absl::Time early = now + absl::Seconds(1);
  EXPECT_EQ(calls.add(2, call_to(5, early)), early);
  for (const uint64_t id : {1, 2}) calls.sent(id, 0);
  calls.lose_alarm(early);
  const PendingCalls::Expired expired = calls.take_expired(late, late);
  EXPECT_EQ(expired.calls.size(), 2u);
  // A call that comes before that has an alarm, whatever its deadline.
  calls.lose_alarm(expired.next);
  EXPECT_EQ(calls.add(3, call_to(5, late)), late);
}

TEST(PendingCalls, ConcurrentTakersShareEachCallOut) {
  PendingCalls calls;
  constexpr uint64_t kCalls = 2000;
  for (uint64_t id = 1; id <= kCalls; ++id) calls.add(id, call_to(5));
  std::atomic<uint64_t> taken{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (uint64_t id = 1; id <= kCalls; ++id) {
        if (calls.take(id)) {
          taken.fetch_add(1);
          calls.finished();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken.load(), kCalls);
  EXPECT_EQ(calls.unfinished(), 0u);
}

}  // namespace
}  // namespace gradwire::rpc
