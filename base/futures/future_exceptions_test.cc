#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/duty.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/testing/fragile.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gtest/gtest.h"

// Copies, moves and destructors of values are code of users: they may throw, and they may do what a thread on
// duty must not do.
namespace gradwire {
namespace {

using testing::Fragile;
using testing::Moves;

template <class T>
class FutureExceptions : public ::testing::Test {
 protected:
  // Runs `program` once for each copy and move that it makes, which fails then. `program` returns the result
  // that arrives, which must be the value or the failure.
  static void at_each_copy(const std::function<absl::Status()>& program) {
    constexpr int kMost = 100;
    for (int n = 1; n <= kMost; ++n) {
      T::until_throw = n;
      absl::Status status;
      bool thrown = false;
      try {
        status = program();
      } catch (const std::exception& error) {
        thrown = true;  // A copy in the frame of the test itself, or an Error that wait() throws.
        EXPECT_NE(std::string(error.what()).find("the copy failed"), std::string::npos) << error.what();
      }
      const bool ended = T::until_throw > 0;
      T::until_throw = 0;
      EXPECT_EQ(T::living, 0) << "copy " << n;
      if (ended) {
        EXPECT_FALSE(thrown);
        EXPECT_TRUE(status.ok()) << status;
        return;
      }
      if (!thrown && !status.ok())
        EXPECT_NE(status.message().find("the copy failed"), std::string::npos) << status;
    }
    ADD_FAILURE() << "more than " << kMost << " copies";
  }
};

using Types =
    ::testing::Types<Fragile<Moves::kCopiesOnly>, Fragile<Moves::kNeverThrow>, Fragile<Moves::kMayThrow>>;
TYPED_TEST_SUITE(FutureExceptions, Types);

TYPED_TEST(FutureExceptions, SetValue) {
  this->at_each_copy([] {
    Promise<TypeParam> promise;
    const TypeParam value(1);
    EXPECT_TRUE(promise.set_value(value));
    EXPECT_TRUE(promise.future().done());
    return promise.future().result().status();
  });
}

TYPED_TEST(FutureExceptions, MadeOfAResult) {
  this->at_each_copy([] {
    absl::StatusOr<TypeParam> result(absl::in_place, 1);
    return Future<TypeParam>(std::move(result)).result().status();
  });
  this->at_each_copy([] {
    const absl::StatusOr<TypeParam> result(absl::in_place, 1);
    const TypeParam copy = value_or_throw(result);
    return Future<TypeParam>(result).result().status();
  });
}

TYPED_TEST(FutureExceptions, CoroutineThatReturnsAResult) {
  this->at_each_copy([] {
    const auto run = []() -> Future<TypeParam> {
      absl::StatusOr<TypeParam> result(absl::in_place, 1);
      co_return std::move(result);
    };
    return run().result().status();
  });
}

TYPED_TEST(FutureExceptions, Wait) {
  this->at_each_copy([] {
    Promise<TypeParam> promise;
    EXPECT_TRUE(promise.set_value(TypeParam(1)));
    EXPECT_EQ(promise.future().wait().number(), 1);
    return absl::OkStatus();
  });
}

TYPED_TEST(FutureExceptions, SetResult) {
  this->at_each_copy([] {
    Promise<TypeParam> promise;
    const absl::StatusOr<TypeParam> value(absl::in_place, 1);
    EXPECT_TRUE(promise.set_result(value));
    EXPECT_TRUE(promise.future().done());
    return promise.future().result().status();
  });
  this->at_each_copy([] {
    Promise<TypeParam> promise;
    EXPECT_TRUE(promise.set_result(absl::StatusOr<TypeParam>(absl::in_place, 1), nullptr));
    EXPECT_TRUE(promise.future().done());
    return promise.future().result().status();
  });
}

TYPED_TEST(FutureExceptions, Then) {
  this->at_each_copy([] {
    Promise<TypeParam> promise;
    const auto next = promise.future().then([](const TypeParam& value) { return TypeParam(value); });
    promise.set_value(1);
    EXPECT_TRUE(next.done());
    return next.result().status();
  });
}

TYPED_TEST(FutureExceptions, FlattenedFuture) {
  this->at_each_copy([] {
    Promise<int> first;
    Promise<TypeParam> second;
    const auto next = first.future().then([&](int) { return second.future(); });
    first.set_value(0);
    second.set_value(1);
    EXPECT_TRUE(next.done());
    return next.result().status();
  });
}

TYPED_TEST(FutureExceptions, Collect) {
  this->at_each_copy([] {
    std::vector<Promise<TypeParam>> promises(3);
    std::vector<Future<TypeParam>> futures;
    for (const auto& promise : promises) futures.push_back(promise.future());
    const auto all = collect(std::move(futures));
    for (const auto& promise : promises) promise.set_value(1);
    EXPECT_TRUE(all.done());
    return all.result().status();
  });
}

template <class T>
Future<T> await_and_return(Future<T> future) {
  T value = co_await future;
  co_return value;
}

TYPED_TEST(FutureExceptions, Coroutine) {
  this->at_each_copy([] {
    Promise<TypeParam> promise;
    const auto result = await_and_return(promise.future());
    promise.set_value(1);
    EXPECT_TRUE(result.done());
    return result.result().status();
  });
}

// Completes futures as a thread that drives an event loop does.
TYPED_TEST(FutureExceptions, ThreadOnDutyDoesNotTouchTheValues) {
  class Made : public future_internal::LazyResult<TypeParam> {
    void make(std::optional<absl::StatusOr<TypeParam>>& result) override {
      result.emplace(absl::in_place, 1);
    }
  };
  TypeParam::on_duty_count = 0;
  auto pool = std::make_shared<ThreadPool>(ThreadPool::Options{.num_threads = 1});
  {
    std::vector<Promise<TypeParam>> promises;
    for (int i = 0; i < 4; ++i) promises.emplace_back(pool);
    const auto all = collect<TypeParam>({promises[0].future(), promises[1].future()});
    const auto flat = Future<int>(Future<int>::Result(0)).then([&](int) { return promises[2].future(); });
    const auto awaited = await_and_return(promises[3].future());
    flat.wait_for(absl::ZeroDuration());
    {
      const DutyScope duty;
      for (const auto& promise : promises) promise.set_lazy(std::make_unique<Made>(), nullptr);
    }
    EXPECT_EQ(all.wait().size(), 2u);
    EXPECT_EQ(flat.wait().number(), 1);
    EXPECT_EQ(awaited.wait().number(), 1);
    // The last owner of a value that was read is on duty.
    Promise<TypeParam> last(pool);
    last.set_lazy(std::make_unique<Made>(), nullptr);
    EXPECT_EQ(last.future().wait().number(), 1);
    const DutyScope duty;
    last = Promise<TypeParam>();
  }
  pool->shutdown();
  EXPECT_EQ(TypeParam::on_duty_count, 0);
  EXPECT_EQ(TypeParam::living, 0);
}

TEST(FutureCallbacks, ThoseAfterOneThatThrowsStillRun) {
  Promise<int> promise;
  int called = 0;
  promise.future().on_ready_inline([&](const auto&) {
    ++called;
    throw std::runtime_error("the first one fails");
  });
  promise.future().on_ready([&](const auto&) { ++called; });
  EXPECT_TRUE(promise.set_value(1));
  EXPECT_EQ(called, 2);
}

}  // namespace
}  // namespace gradwire
