#include "gradwire/base/futures/future.h"

#include <any>
#include <atomic>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/threads/execution_state.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gtest/gtest.h"

namespace gradwire {
namespace {

using Number = ExecutionSlot<int>;

int number_in_slot() { return Number::get() == nullptr ? 0 : *Number::get(); }

struct NoDefault {
  explicit NoDefault(int v) : value(v) {}
  int value;
};

TEST(Future, ValueArrives) {
  Promise<int> promise;
  Future<int> future = promise.future();
  EXPECT_FALSE(future.done());
  EXPECT_TRUE(promise.set_value(3));
  EXPECT_TRUE(future.done());
  EXPECT_EQ(future.wait(), 3);
  EXPECT_EQ(*future.result(), 3);
}

TEST(Future, WaitsForAnotherThread) {
  Promise<std::string> promise;
  Future<std::string> future = promise.future();
  std::thread producer([promise = std::move(promise)] { promise.set_value("late"); });
  EXPECT_EQ(future.wait(), "late");
  producer.join();
}

TEST(Future, ErrorIsThrownByWaitAndReturnedByResult) {
  Promise<int> promise;
  promise.set_error(with_worker(absl::NotFoundError("function not found"), "ps"));
  try {
    promise.future().wait();
    FAIL() << "wait() returned";
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(error.worker(), "ps");
  }
  EXPECT_EQ(promise.future().result().status().message(), "function not found");
}

TEST(Future, VoidCarriesAStatus) {
  Promise<void> good, bad;
  good.set_value();
  bad.set_error(absl::AbortedError("x"));
  good.future().wait();
  EXPECT_TRUE(good.future().result().ok());
  EXPECT_THROW(bad.future().wait(), Error);
  EXPECT_EQ(bad.future().result().code(), absl::StatusCode::kAborted);
}

TEST(Future, MadeFromAResult) {
  EXPECT_EQ(Future<int>(3).wait(), 3);
  EXPECT_EQ(Future<bool>(false).wait(), false);
  EXPECT_EQ(Future<std::string>(std::string("x")).wait(), "x");
  EXPECT_TRUE(Future<void>(absl::OkStatus()).result().ok());
  EXPECT_EQ(Future<int>(absl::NotFoundError("x")).result().status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Future<NoDefault>(NoDefault(4)).wait().value, 4);
  EXPECT_FALSE(Future<int>().valid());
  static_assert(!std::is_convertible_v<Future<int>, bool>);
  static_assert(!std::is_convertible_v<Future<int>, Future<bool>>);
}

TEST(Future, MoveOnlyValueIsSeenByThenAndOnReady) {
  Promise<std::unique_ptr<int>> promise;
  Future<int> next = promise.future().then([](const std::unique_ptr<int>& value) { return *value; });
  int seen = 0;
  promise.future().on_ready([&seen](const absl::StatusOr<std::unique_ptr<int>>& value) { seen = **value; });
  promise.set_value(std::make_unique<int>(5));
  EXPECT_EQ(next.wait(), 5);
  EXPECT_EQ(seen, 5);
}

TEST(Future, TakenResultIsMovedOut) {
  Promise<std::unique_ptr<int>> promise;
  promise.set_value(std::make_unique<int>(4));
  EXPECT_EQ(**future_internal::take_result(promise.future()), 4);
  Promise<std::string> failed;
  failed.set_error(absl::NotFoundError("no value"));
  EXPECT_EQ(future_internal::take_result(failed.future()).status().message(), "no value");
  Promise<void> empty;
  empty.set_value();
  EXPECT_TRUE(future_internal::take_result(empty.future()).ok());
}

TEST(Future, WaitForGivesUpAndFindsTheValueLater) {
  Promise<int> promise;
  EXPECT_FALSE(promise.future().wait_for(absl::Milliseconds(1)));
  EXPECT_FALSE(promise.future().wait_for(absl::ZeroDuration()));
  EXPECT_FALSE(promise.future().wait_for(-absl::InfiniteDuration()));
  promise.set_value(1);
  EXPECT_TRUE(promise.future().wait_for(absl::ZeroDuration()));
  EXPECT_TRUE(promise.future().wait_for(absl::InfiniteDuration()));
}

template <class T, class... V>
concept MayBeSetTo = requires(const Promise<T>& promise, V... values) {
  promise.set_value(values...);
};

TEST(Promise, ValueIsInitialisedAndNeverCast) {
  static_assert(MayBeSetTo<std::string, const char*>);
  static_assert(MayBeSetTo<std::string, int, char>);
  static_assert(MayBeSetTo<std::vector<double>, int>);
  static_assert(MayBeSetTo<void>);
  static_assert(!MayBeSetTo<int64_t, const char*>);
  static_assert(!MayBeSetTo<int*, int64_t*>);
  static_assert(!MayBeSetTo<int*, const int*>);
  static_assert(!MayBeSetTo<void, int>);
  Promise<std::string> promise;
  promise.set_value(3, 'x');
  EXPECT_EQ(promise.future().wait(), "xxx");
}

TEST(Promise, SecondCompletionIsIgnoredAndCounted) {
  const uint64_t before = ignored_completions();
  Promise<int> promise;
  EXPECT_TRUE(promise.set_value(1));
  EXPECT_FALSE(promise.set_value(2));
  EXPECT_FALSE(promise.set_error(absl::AbortedError("x")));
  EXPECT_EQ(promise.future().wait(), 1);
  EXPECT_EQ(ignored_completions() - before, 2);
}

TEST(Promise, RacingCompletionsHaveOneWinner) {
  for (int round = 0; round < 200; ++round) {
    Promise<int> promise;
    std::atomic<int> winners{0}, calls{0};
    promise.future().on_ready([&calls](const auto&) { ++calls; });
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] { winners += promise.set_value(i) ? 1 : 0; });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(winners, 1);
    EXPECT_EQ(calls, 1);
  }
}

TEST(Promise, AbandonedCompletesWithCancelled) {
  Future<int> future;
  {
    Promise<int> promise;
    Promise<int> copy = promise;
    future = promise.future();
  }
  EXPECT_EQ(future.result().status().code(), absl::StatusCode::kCancelled);
}

TEST(Promise, NothingIsLeftWhenBothSidesAreGone) {
  auto held = std::make_shared<int>(0);
  {
    Promise<int> promise;
    promise.on_cancel([held] {});
    Future<int> next = promise.future().then([held](int n) { return n; });
    next.on_ready([held](const auto&) {});
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(FutureThen, TakesTheValue) {
  Promise<int> promise;
  Future<std::string> next = promise.future().then([](int n) { return std::to_string(n + 1); });
  EXPECT_FALSE(next.done());
  promise.set_value(1);
  EXPECT_EQ(next.wait(), "2");
}

TEST(FutureThen, TakesTheResult) {
  Future<int> bad(absl::NotFoundError("x"));
  EXPECT_EQ(bad.then([](absl::StatusOr<int> result) { return result.ok() ? 1 : 2; }).wait(), 2);
  EXPECT_EQ(bad.then([](const absl::StatusOr<int>& result) { return result.value_or(5); }).wait(), 5);
  EXPECT_EQ(bad.then([](const auto& result) { return result.ok() ? *result : 6; }).wait(), 6);
  EXPECT_EQ(Future<int>(7).then([](const auto& result) { return *result; }).wait(), 7);
}

TEST(FutureThen, ErrorPassesByAFunctionOfTheValue) {
  bool called = false;
  Future<int> next = Future<int>(with_worker(absl::NotFoundError("x"), "w")).then([&called](int) {
    called = true;
    return 1;
  });
  EXPECT_EQ(next.result().status().message(), "x");
  EXPECT_EQ(worker_of(next.result().status()), "w");
  EXPECT_FALSE(called);
}

TEST(FutureThen, ValueThatSwallowsAnythingIsStillTheValue) {
  Future<bool> next =
      Future<std::any>(std::any(3)).then([](std::any value) { return value.type() == typeid(int); });
  EXPECT_TRUE(next.wait());
}

TEST(FutureThen, VoidOnEitherSide) {
  int calls = 0;
  Promise<void> promise;
  Future<int> next = promise.future().then([&calls] { ++calls; }).then([] { return 4; });
  Future<bool> status = promise.future().then([](absl::Status status) { return status.ok(); });
  promise.set_value();
  EXPECT_EQ(next.wait(), 4);
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(status.wait());
  Future<void> bad(absl::AbortedError("x"));
  EXPECT_EQ(bad.then([] { return 1; }).result().status().code(), absl::StatusCode::kAborted);
}

TEST(FutureThen, ReturnedResultAndStatusAreUnwrapped) {
  Future<int> result = Future<int>(1).then([](int n) -> absl::StatusOr<int> { return n + 1; });
  EXPECT_EQ(result.wait(), 2);
  Future<int> error = Future<int>(1).then([](int) -> absl::StatusOr<int> { return absl::AbortedError("x"); });
  EXPECT_EQ(error.result().status().code(), absl::StatusCode::kAborted);
  Future<void> status = Future<int>(1).then([](int) { return absl::AbortedError("y"); });
  EXPECT_EQ(status.result().message(), "y");
}

TEST(FutureThen, ReturnedReferenceIsCopied) {
  const std::string name = "n";
  Future<std::string> next = Future<int>(1).then([&name](int) -> const std::string& { return name; });
  EXPECT_EQ(next.wait(), "n");
}

TEST(FutureThen, ReturnedFutureIsFlattened) {
  Promise<int> first;
  Promise<std::string> second;
  Future<std::string> next = first.future().then([&second](int) { return second.future(); });
  first.set_value(1);
  EXPECT_FALSE(next.done());
  second.set_value("inner");
  EXPECT_EQ(next.wait(), "inner");
  Future<void> inner_error =
      Future<int>(1).then([](int) { return Future<void>(absl::AbortedError("inner")); });
  EXPECT_EQ(inner_error.result().message(), "inner");
}

TEST(FutureThen, ReturnedEmptyFutureIsAnError) {
  EXPECT_EQ(Future<int>(1).then([](int) { return Future<int>(); }).result().status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(FutureThen, ExceptionBecomesTheError) {
  Future<int> next = Future<int>(1).then([](int) -> int { throw std::out_of_range("index 7"); });
  EXPECT_EQ(next.result().status(), absl::UnknownError("std::out_of_range: index 7"));
  Future<int> own = Future<int>(1).then([](int) -> int { throw Error(absl::NotFoundError("gone")); });
  EXPECT_EQ(own.result().status(), absl::NotFoundError("gone"));
}

TEST(FutureThen, MoveOnlyFunction) {
  auto value = std::make_unique<int>(2);
  EXPECT_EQ(Future<int>(1).then([value = std::move(value)](int n) { return n + *value; }).wait(), 3);
}

TEST(FutureCancel, ReachesTheProducerThroughAChain) {
  Promise<int> promise;
  std::vector<std::string> events;
  promise.on_cancel([&events] { events.push_back("cancelled"); });
  Future<int> last = promise.future().then([](int n) { return n; }).then([](int n) { return n; });
  last.cancel();
  last.cancel();
  EXPECT_EQ(events.size(), 1);
  EXPECT_EQ(last.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(promise.future().result().status().code(), absl::StatusCode::kCancelled);
}

TEST(FutureCancel, ReachesTheReturnedFuture) {
  Promise<int> inner;
  bool cancelled = false;
  inner.on_cancel([&cancelled] { cancelled = true; });
  Future<int> next = Future<int>(1).then([&inner](int) { return inner.future(); });
  next.cancel();
  EXPECT_TRUE(cancelled);
}

TEST(FutureCancel, LateResultIsDroppedAndNotCounted) {
  const uint64_t before = ignored_completions();
  Promise<int> promise;
  promise.future().cancel();
  EXPECT_FALSE(promise.set_value(1));
  EXPECT_EQ(promise.future().result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ignored_completions(), before);
}

TEST(FutureCancel, HandlerMayCompleteWithAReasonOfItsOwn) {
  Promise<int> promise;
  promise.on_cancel([promise] { promise.set_error(absl::AbortedError("mine")); });
  promise.future().cancel();
  EXPECT_EQ(promise.future().result().status().message(), "mine");
}

TEST(FutureCancel, HandlerIsDroppedWhenDoneAndRunWhenLate) {
  auto held = std::make_shared<int>(0);
  Promise<int> promise;
  promise.on_cancel([held] { ++*held; });
  promise.set_value(1);
  EXPECT_EQ(held.use_count(), 1);
  promise.on_cancel([held] { ++*held; });
  promise.future().cancel();
  EXPECT_EQ(*held, 0);
  EXPECT_EQ(promise.future().wait(), 1);
}

TEST(FutureCancel, ThrowingHandlerIsSurvived) {
  Promise<int> promise;
  promise.on_cancel([] { throw std::out_of_range("handler"); });
  promise.future().cancel();
  EXPECT_EQ(promise.future().result().status().code(), absl::StatusCode::kCancelled);
}

TEST(FutureOnReady, CalledOnceBeforeOrAfterCompletion) {
  Promise<int> promise;
  int calls = 0;
  promise.future().on_ready([&calls](const absl::StatusOr<int>& result) { calls += *result; });
  EXPECT_EQ(calls, 0);
  promise.set_value(1);
  EXPECT_EQ(calls, 1);
  promise.future().on_ready([&calls](const absl::StatusOr<int>& result) { calls += *result; });
  EXPECT_EQ(calls, 2);
}

TEST(FutureOnReady, FutureIsHeldUntilTheCallbackHasRun) {
  auto pool = std::make_shared<ThreadPool>(ThreadPool::Options{.num_threads = 2});
  std::atomic<int> sum{0};
  for (int i = 0; i < 200; ++i) {
    Promise<int> promise(pool);
    promise.future().on_ready([&sum](const absl::StatusOr<int>& result) { sum += *result; });
    promise.set_value(1);  // From here on only the posted callback holds the state.
  }
  pool->shutdown();
  EXPECT_EQ(sum, 200);
}

TEST(FutureOnReady, ThrowingCallbackIsSurvived) {
  auto pool = std::make_shared<ThreadPool>(ThreadPool::Options{});
  Promise<int> promise(pool);
  promise.future().on_ready([](const auto&) { throw std::out_of_range("callback"); });
  std::latch second(1);
  promise.future().on_ready([&second](const auto&) { second.count_down(); });
  promise.set_value(1);
  second.wait();
  pool->shutdown();
}

TEST(FutureOnReady, CallbackMayUseItsFuture) {
  Promise<int> promise;
  Future<int> future = promise.future();
  int seen = 0;
  future.on_ready([&seen, future](const auto&) {
    seen = future.wait();
    future.on_ready([&seen](const auto& result) { seen += *result; });
    future.cancel();
  });
  promise.set_value(2);
  EXPECT_EQ(seen, 4);
}

TEST(FutureExecutor, CallbacksRunOnItAndNeverInTheFrameThatAttaches) {
  auto pool = std::make_shared<ThreadPool>(ThreadPool::Options{.num_threads = 1});
  Promise<int> promise(pool);
  promise.set_value(1);
  const std::thread::id caller = std::this_thread::get_id();
  Future<bool> elsewhere =
      promise.future().then([caller](int) { return std::this_thread::get_id() != caller; });
  EXPECT_TRUE(elsewhere.wait());
  EXPECT_EQ(elsewhere.executor(), pool);
  EXPECT_TRUE(elsewhere.then([&](bool) { return Executor::current() == pool.get(); }).wait());
  pool->shutdown();
}

TEST(FutureExecutor, CallbacksStillRunAfterItsShutdown) {
  auto pool = std::make_shared<ThreadPool>(ThreadPool::Options{});
  Promise<int> promise(pool);
  Future<int> next = promise.future().then([](int n) { return n + 1; });
  pool->shutdown();
  promise.set_value(1);
  EXPECT_EQ(next.wait(), 2);
}

TEST(FutureExecutor, StateIsThatOfTheCodeThatAttached) {
  auto pool = std::make_shared<ThreadPool>(ThreadPool::Options{.num_threads = 1});
  for (const std::shared_ptr<Executor>& executor :
       {std::shared_ptr<Executor>(pool), std::shared_ptr<Executor>()}) {
    Promise<int> promise(executor);
    Future<int> seven, none;
    {
      Number::Scope scope(std::make_shared<int>(7));
      seven = promise.future().then([](int) {
        const int seen = number_in_slot();
        Number::set(std::make_shared<int>(9));
        return seen;
      });
    }
    none = promise.future().then([](int) { return number_in_slot(); });
    Number::Scope completing(std::make_shared<int>(5));
    promise.set_value(1);
    EXPECT_EQ(seven.wait(), 7);
    EXPECT_EQ(none.wait(), 0);
    EXPECT_EQ(number_in_slot(), 5);
  }
  pool->shutdown();
}

TEST(FutureExecutor, CompletionRacesWithAttachment) {
  auto pool = std::make_shared<ThreadPool>(ThreadPool::Options{.num_threads = 2});
  std::atomic<int> calls{0};
  for (int round = 0; round < 300; ++round) {
    Promise<int> promise(pool);
    std::thread producer([promise] { promise.set_value(1); });
    promise.future().on_ready([&calls](const auto& result) { calls += *result; });
    promise.future().on_ready_inline([&calls](const auto& result) { calls += *result; });
    producer.join();
  }
  pool->shutdown();
  EXPECT_EQ(calls, 600);
}

TEST(FutureExecutor, CancelRacesWithCompletion) {
  for (int round = 0; round < 300; ++round) {
    Promise<int> promise;
    std::atomic<int> cancelled{0};
    promise.on_cancel([&cancelled] { ++cancelled; });
    Future<int> next = promise.future().then([](int n) { return n; });
    std::thread producer([promise] { promise.set_value(1); });
    next.cancel();
    producer.join();
    EXPECT_TRUE(next.done());
    EXPECT_LE(cancelled, 1);
  }
}

TEST(Collect, ValuesInOrder) {
  std::vector<Promise<int>> promises(3);
  std::vector<Future<int>> futures;
  for (Promise<int>& promise : promises) futures.push_back(promise.future());
  Future<std::vector<int>> all = collect(futures);
  promises[2].set_value(2);
  promises[0].set_value(0);
  EXPECT_FALSE(all.done());
  promises[1].set_value(1);
  EXPECT_EQ(all.wait(), (std::vector<int>{0, 1, 2}));
}

TEST(Collect, FirstErrorWinsAtOnce) {
  const uint64_t before = ignored_completions();
  std::vector<Promise<NoDefault>> promises(3);
  Future<std::vector<NoDefault>> all = collect(
      std::vector<Future<NoDefault>>{promises[0].future(), promises[1].future(), promises[2].future()});
  promises[1].set_error(absl::AbortedError("first"));
  EXPECT_TRUE(all.done());
  promises[0].set_error(absl::NotFoundError("second"));
  promises[2].set_value(1);
  EXPECT_EQ(all.result().status().message(), "first");
  EXPECT_EQ(ignored_completions(), before);
}

TEST(Collect, NothingIsDoneAtOnce) {
  EXPECT_TRUE(collect(std::vector<Future<int>>()).wait().empty());
  EXPECT_TRUE(collect(std::vector<Future<void>>()).result().ok());
}

TEST(Collect, VoidFutures) {
  Promise<void> a, b;
  Future<void> all = collect(std::vector<Future<void>>{a.future(), b.future()});
  a.set_value();
  EXPECT_FALSE(all.done());
  b.set_value();
  EXPECT_TRUE(all.result().ok());
  Promise<void> c, d;
  Future<void> failing = collect(std::vector<Future<void>>{c.future(), d.future()});
  d.set_error(absl::AbortedError("x"));
  EXPECT_EQ(failing.result().code(), absl::StatusCode::kAborted);
}

TEST(Collect, CancelReachesAll) {
  const uint64_t before = ignored_completions();
  int cancelled = 0;
  Promise<int> a, b;
  a.on_cancel([&cancelled] { ++cancelled; });
  b.on_cancel([&cancelled] { ++cancelled; });
  Future<std::vector<int>> all = collect(std::vector<Future<int>>{a.future(), b.future()});
  all.cancel();
  EXPECT_EQ(cancelled, 2);
  EXPECT_EQ(all.result().status().code(), absl::StatusCode::kCancelled);
  Promise<void> c, d;
  c.on_cancel([&cancelled] { ++cancelled; });
  d.on_cancel([&cancelled] { ++cancelled; });
  Future<void> both = collect(std::vector<Future<void>>{c.future(), d.future()});
  both.cancel();
  EXPECT_EQ(cancelled, 4);
  EXPECT_EQ(both.result().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ignored_completions(), before);
}

}  // namespace
}  // namespace gradwire
