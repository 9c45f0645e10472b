#include <pthread.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gradwire/base/futures/future.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gtest/gtest.h"

// Programs choose how many futures depend on one another, so no chain may use the stack in proportion to its
// length.
namespace gradwire {
namespace {

constexpr int kLong = 1'000'000;

// Calls `body` on a thread with little stack, where a frame for each link of a long chain has no room.
void on_small_stack(std::function<void()> body) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 512 << 10), 0);
  pthread_t thread;
  ASSERT_EQ(pthread_create(
                &thread, &attributes,
                [](void* function) -> void* {
                  (*static_cast<std::function<void()>*>(function))();
                  return nullptr;
                },
                &body),
            0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
}

Future<int> long_chain(Future<int> future) {
  for (int i = 0; i < kLong; ++i) future = future.then([](int n) { return n + 1; });
  return future;
}

TEST(FutureDepth, ChainOfThen) {
  on_small_stack([] {
    Promise<int> promise;
    const Future<int> last = long_chain(promise.future());
    promise.set_value(0);
    EXPECT_EQ(last.wait(), kLong);
  });
}

TEST(FutureDepth, ChainOfThenOnAPoolThatHasShutDown) {
  on_small_stack([] {
    auto pool = std::make_shared<ThreadPool>(ThreadPool::Options{.num_threads = 1});
    Promise<int> promise(pool);
    const Future<int> last = long_chain(promise.future());
    pool->shutdown();
    promise.set_value(0);
    EXPECT_EQ(last.wait(), kLong);
  });
}

TEST(FutureDepth, CancelledChain) {
  on_small_stack([] {
    bool producer_knows = false;
    Promise<int> promise;
    promise.on_cancel([&] { producer_knows = true; });
    const Future<int> last = long_chain(promise.future());
    last.cancel();
    EXPECT_TRUE(producer_knows);
    EXPECT_EQ(last.result().status().code(), absl::StatusCode::kCancelled);
  });
}

TEST(FutureDepth, AbandonedChain) {
  on_small_stack([] {
    std::optional<Promise<int>> promise(std::in_place);
    const Future<int> last = long_chain(promise->future());
    promise.reset();
    EXPECT_EQ(last.result().status().code(), absl::StatusCode::kCancelled);
  });
}

Future<int> countdown(const std::vector<Promise<int>>& steps, int n) {
  if (n == 0) return Future<int>(Future<int>::Result(7));
  return steps[n - 1].future().then([&steps, n](int) { return countdown(steps, n - 1); });
}

TEST(FutureDepth, FlattenedChain) {
  on_small_stack([] {
    // Each step returns the future of the rest, and the last one completes all of them.
    std::vector<Promise<int>> steps(kLong / 10);
    const Future<int> last = countdown(steps, static_cast<int>(steps.size()));
    for (std::size_t i = steps.size(); i > 0; --i) steps[i - 1].set_value(0);
    EXPECT_EQ(last.wait(), 7);
  });
}

Future<int> await_one(Future<int> before) { co_return co_await before + 1; }

TEST(FutureDepth, ChainOfCoroutines) {
  on_small_stack([] {
    Promise<int> promise;
    Future<int> last = promise.future();
    for (int i = 0; i < kLong / 10; ++i) last = await_one(last);
    promise.set_value(0);
    EXPECT_EQ(last.wait(), kLong / 10);
  });
}

TEST(FutureDepth, CallbackMayWaitForWhatWasDeferredBelowIt) {
  // The callback of a deep link waits for a later link of another chain, whose callbacks were deferred.
  constexpr int kLinks = 100;
  Promise<int> promise;
  Future<int> waits = promise.future();
  for (int i = 0; i < kLinks; ++i) waits = waits.then([](int n) { return n; });
  Promise<int> second;
  Future<int> other = second.future();
  for (int i = 0; i < kLinks; ++i) other = other.then([](int n) { return n; });
  const Future<int> last = waits.then([&](int) {
    second.set_value(3);
    return other.wait();
  });
  promise.set_value(0);
  EXPECT_EQ(last.wait(), 3);
}

TEST(FutureDepth, CallbacksRunInTheOrderInWhichTheyWereAttached) {
  Promise<void> promise;
  std::vector<int> order;
  for (int i = 0; i < 100; ++i)
    promise.future().on_ready([&order, i](const absl::Status&) { order.push_back(i); });
  promise.set_value();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

}  // namespace
}  // namespace gradwire
