#include <atomic>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/futures/future.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gtest/gtest.h"

namespace gradwire {
namespace {

using Number = ExecutionSlot<int>;

int number() { return Number::get() == nullptr ? 0 : *Number::get(); }

std::shared_ptr<ThreadPool> one_thread() {
  return std::make_shared<ThreadPool>(ThreadPool::Options{.num_threads = 1});
}

Future<int> add_one(Future<int> future) { co_return co_await future + 1; }

Future<int> add_two(Future<int> future) {
  const int one = co_await add_one(future);
  co_return co_await add_one(Future<int>(one));
}

TEST(Coroutine, AwaitsADoneFutureWithoutSuspending) {
  Future<int> future = add_one(Future<int>(1));
  EXPECT_TRUE(future.done());
  EXPECT_EQ(future.wait(), 2);
}

TEST(Coroutine, AwaitsAPendingFuture) {
  Promise<int> promise;
  Future<int> future = add_one(promise.future());
  EXPECT_FALSE(future.done());
  promise.set_value(1);
  EXPECT_EQ(future.wait(), 2);
}

TEST(Coroutine, Nests) {
  Promise<int> promise;
  Future<int> future = add_two(promise.future());
  promise.set_value(1);
  EXPECT_EQ(future.wait(), 3);
}

TEST(Coroutine, ReturnsVoid) {
  Promise<void> promise;
  int step = 0;
  auto run = [](Future<void> wanted, int* step) -> Future<void> {
    *step = 1;
    co_await wanted;
    *step = 2;
  };
  Future<void> future = run(promise.future(), &step);
  EXPECT_EQ(step, 1);
  promise.set_value();
  future.wait();
  EXPECT_EQ(step, 2);
}

TEST(Coroutine, ReturnsAResultABracedValueOrABool) {
  auto result = []() -> Future<int> { co_return absl::StatusOr<int>(absl::NotFoundError("x")); };
  EXPECT_EQ(result().result().status().code(), absl::StatusCode::kNotFound);
  auto status = []() -> Future<int> { co_return absl::AbortedError("x"); };
  EXPECT_EQ(status().result().status().code(), absl::StatusCode::kAborted);
  auto braced = []() -> Future<std::pair<int, std::string>> { co_return {1, "x"}; };
  EXPECT_EQ(braced().wait().second, "x");
  auto boolean = []() -> Future<bool> { co_return false; };
  EXPECT_FALSE(boolean().wait());
}

TEST(Coroutine, ErrorOfAnAwaitedFutureIsThrownInside) {
  auto survive = [](Future<int> future) -> Future<std::string> {
    std::string seen;
    try {
      co_await future;
    } catch (const Error& error) {
      seen = error.worker();
    }
    co_return seen;
  };
  Promise<int> promise;
  Future<std::string> survived = survive(promise.future());
  Future<int> passed = add_two(promise.future());
  promise.set_error(with_worker(absl::AbortedError("x"), "w"));
  EXPECT_EQ(survived.wait(), "w");
  EXPECT_EQ(passed.result().status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(worker_of(passed.result().status()), "w");
}

TEST(Coroutine, ExceptionBecomesTheError) {
  auto before = []() -> Future<int> {
    throw std::out_of_range("before");
    co_return 1;
  };
  EXPECT_EQ(before().result().status(), absl::UnknownError("std::out_of_range: before"));
  auto after = [](Future<void> wanted) -> Future<void> {
    co_await wanted;
    throw 7;
  };
  Promise<void> promise;
  Future<void> future = after(promise.future());
  promise.set_value();
  EXPECT_EQ(future.result().code(), absl::StatusCode::kUnknown);
}

TEST(Coroutine, AbandonedPromiseEndsTheWait) {
  Future<int> future;
  {
    Promise<int> promise;
    future = add_two(promise.future());
  }
  EXPECT_EQ(future.result().status().code(), absl::StatusCode::kCancelled);
}

TEST(Coroutine, EmptyFutureIsAnError) {
  EXPECT_EQ(add_one(Future<int>()).result().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Coroutine, LocalsAndParametersAreDestroyedBeforeCompletion) {
  std::vector<std::string> events;
  auto note = [&events](std::string event) {
    return std::shared_ptr<int>(new int(0), [&events, event](int* value) {
      delete value;
      events.push_back(event);
    });
  };
  auto run = [](Future<int> future, std::shared_ptr<int>, std::shared_ptr<int> local) -> Future<int> {
    std::shared_ptr<int> moved = std::move(local);
    co_return co_await future;
  };
  Promise<int> promise;
  Future<int> future = run(promise.future(), note("parameter"), note("local"));
  future.on_ready([&events](const auto&) { events.push_back("done"); });
  EXPECT_TRUE(events.empty());
  promise.set_value(1);
  EXPECT_EQ(events, (std::vector<std::string>{"local", "parameter", "done"}));
}

TEST(Coroutine, IsResumedOnTheExecutorOfTheAwaitedFuture) {
  auto pool = one_thread();
  auto run = [](Future<int> future) -> Future<Executor*> {
    co_await future;
    co_return Executor::current();
  };
  Promise<int> promise(pool);
  Future<Executor*> future = run(promise.future());
  promise.set_value(1);
  EXPECT_EQ(future.wait(), pool.get());
  pool->shutdown();
}

Future<std::vector<int>> numbers_around(Future<int> first, Future<int> second) {
  std::vector<int> seen;
  seen.push_back(number());
  Number::Scope scope(std::make_shared<int>(8));
  co_await first;
  seen.push_back(number());
  {
    Number::Scope inner(std::make_shared<int>(9));
    co_await second;
    seen.push_back(number());
  }
  seen.push_back(number());
  co_return seen;
}

TEST(CoroutineState, IsKeptAcrossAwaits) {
  auto pool = one_thread();
  Promise<int> first(pool), second(pool);
  Future<std::vector<int>> future;
  {
    Number::Scope scope(std::make_shared<int>(7));
    future = numbers_around(first.future(), second.future());
  }
  first.set_value(1);
  second.set_value(1);
  EXPECT_EQ(future.wait(), (std::vector<int>{7, 8, 9, 8}));
  pool->shutdown();
}

TEST(CoroutineState, DoesNotLeakIntoTheCaller) {
  Promise<int> first, second;
  Number::Scope scope(std::make_shared<int>(7));
  Future<std::vector<int>> future = numbers_around(first.future(), second.future());
  EXPECT_EQ(number(), 7);
  first.set_value(1);
  EXPECT_EQ(number(), 7);
  second.set_value(1);
  EXPECT_EQ(number(), 7);
  EXPECT_EQ(future.wait(), (std::vector<int>{7, 8, 9, 8}));
}

TEST(CoroutineState, DoesNotLeakIntoTheNextTaskOfTheThread) {
  auto pool = one_thread();
  Promise<int> first(pool), second(pool);
  Promise<Future<std::vector<int>>> started;
  pool->post_clean([&] {
    Number::set(std::make_shared<int>(7));
    started.set_value(numbers_around(first.future(), second.future()));
  });
  Future<std::vector<int>> future = started.future().wait();
  auto next_task_sees = [&pool] {
    Promise<int> seen;
    pool->post_clean([&seen] { seen.set_value(number()); });
    return seen.future().wait();
  };
  EXPECT_EQ(next_task_sees(), 0);
  first.set_value(1);
  EXPECT_EQ(next_task_sees(), 0);
  second.set_value(1);
  EXPECT_EQ(future.wait(), (std::vector<int>{7, 8, 9, 8}));
  EXPECT_EQ(next_task_sees(), 0);
  pool->shutdown();
}

TEST(CoroutineState, NothingIsHeldByAFinishedCoroutine) {
  auto value = std::make_shared<int>(7);
  Promise<int> first, second;
  {
    Number::Scope scope(value);
    Future<std::vector<int>> future = numbers_around(first.future(), second.future());
    first.set_value(1);
    second.set_value(1);
  }
  EXPECT_EQ(value.use_count(), 1);
}

// Counts its objects; a destructor that runs twice shows as a negative number.
struct Tracked {
  Tracked() { ++alive; }
  Tracked(const Tracked&) { ++alive; }
  Tracked(Tracked&&) noexcept { ++alive; }
  ~Tracked() { --alive; }
  std::string text = "a string that is too long for the small buffer";
  static inline std::atomic<int> alive{0};
};

Future<int> take(Future<int> future, Tracked tracked) {
  Tracked local = tracked;
  const int n = co_await future;
  co_return n + static_cast<int>(local.text.size() - tracked.text.size());
}

Future<int> take_strings(Future<int> future, std::string a, std::vector<std::string> b = {}) {
  const int n = co_await std::move(future);
  co_return n + static_cast<int>(a.size() + b.size());
}

Future<Future<int>> later(Future<int> future) {
  co_await future;
  co_return future;
}

Future<int> with_temporaries(Future<int> future) {
  int sum = co_await take(future, Tracked());
  if (co_await take(future, Tracked()) > 0) sum += co_await take(future, Tracked{});
  const Tracked kept;
  sum += co_await take(future, kept) + co_await take(future, Tracked(kept));
  for (int i = 0; i < 2; ++i) sum += co_await take(co_await later(future), Tracked());
  sum += co_await take_strings(future, kept.text + kept.text, std::vector<std::string>(2, kept.text));
  // In a statement of its own: see future_coroutine.h on GCC 12.
  Future<int> next = future.then([kept](int n) { return n + static_cast<int>(kept.text.size()); });
  sum += co_await next;
  co_return sum;
}

TEST(CoroutineLifetime, EveryTemporaryIsDestroyedOnce) {
  const int length = static_cast<int>(Tracked().text.size());
  const int expected = 6 + (1 + 2 * length + 2) + (1 + length);
  {
    EXPECT_EQ(with_temporaries(Future<int>(1)).wait(), expected);
    EXPECT_EQ(Tracked::alive, 0);
    auto pool = one_thread();
    Promise<int> promise(pool);
    Future<int> future = with_temporaries(promise.future());
    EXPECT_GT(Tracked::alive, 0);
    promise.set_value(1);
    EXPECT_EQ(future.wait(), expected);
    pool->shutdown();
  }
  EXPECT_EQ(Tracked::alive, 0);
}

TEST(CoroutineLifetime, LongLoopsDoNotGrowTheStack) {
  auto pool = one_thread();
  auto loop = [](std::shared_ptr<ThreadPool> pool) -> Future<int> {
    int sum = 0;
    for (int i = 0; i < 20000; ++i) {
      Promise<int> promise(i % 2 == 0 ? pool : nullptr);
      promise.set_value(1);
      sum += co_await promise.future();
      Promise<int> later(pool);
      pool->post([later] { later.set_value(1); });
      sum += co_await later.future();
    }
    co_return sum;
  };
  EXPECT_EQ(loop(pool).wait(), 40000);
  pool->shutdown();
}

TEST(CoroutineLifetime, ManyThreadsCompleteAwaitedFutures) {
  auto pool = std::make_shared<ThreadPool>(ThreadPool::Options{.num_threads = 3});
  for (int round = 0; round < 200; ++round) {
    Promise<int> promise(round % 2 == 0 ? pool : nullptr);
    std::thread producer([promise] { promise.set_value(1); });
    EXPECT_EQ(add_two(promise.future()).wait(), 3);
    producer.join();
  }
  pool->shutdown();
}

}  // namespace
}  // namespace gradwire
