#include "rpc/pending_calls.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

PendingCall call_to(uint64_t incarnation) {
  PendingCall call;
  call.to = {"w", 1, incarnation};
  return call;
}

TEST(PendingCalls, IsTakenOnce) {
  PendingCalls calls;
  const uint64_t id = calls.next_id();
  calls.add(id, call_to(5));
  EXPECT_TRUE(calls.take(id).has_value());
  EXPECT_FALSE(calls.take(id).has_value());
  EXPECT_EQ(calls.size(), 0u);
  EXPECT_EQ(calls.unfinished(), 1u);
  calls.finished();
  EXPECT_EQ(calls.unfinished(), 0u);
}

TEST(PendingCalls, AnswerOfAnotherWorkerIsNotTaken) {
  PendingCalls calls;
  calls.add(1, call_to(5));
  EXPECT_FALSE(calls.take_from(1, 6).has_value());
  EXPECT_TRUE(calls.take_from(1, 5).has_value());
}

TEST(PendingCalls, ClosedLinkTakesWhatWasSentOnIt) {
  PendingCalls calls;
  for (uint64_t id = 1; id <= 4; ++id) calls.add(id, call_to(5));
  EXPECT_TRUE(calls.set_sent(1, 7, 70));
  EXPECT_TRUE(calls.set_sent(2, 7, 71));
  EXPECT_TRUE(calls.set_sent(3, 8, 72));
  EXPECT_EQ(calls.sent(2), (std::pair<uint64_t, uint64_t>(7, 71)));
  EXPECT_EQ(calls.take_link(7).size(), 2u);
  EXPECT_EQ(calls.size(), 2u);
  EXPECT_FALSE(calls.set_sent(1, 7, 70));
  EXPECT_EQ(calls.take_all().size(), 2u);
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
