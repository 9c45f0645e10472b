#include "gradwire/base/threads/cancellation.h"

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/threads/execution_state.h"
#include "gradwire/base/threads/executor.h"
#include "gtest/gtest.h"

namespace gradwire {
namespace {

TEST(CancellationToken, DefaultNeverFires) {
  CancellationToken token;
  EXPECT_FALSE(token.cancelled());
  EXPECT_EQ(token.on_cancelled([] { FAIL(); }), 0);
  token.forget(0);
}

TEST(CancellationToken, FirstReasonWinsAndCallbacksRunOnce) {
  CancellationSource source;
  CancellationToken token = source.token();
  int calls = 0;
  token.on_cancelled([&calls] { ++calls; });
  EXPECT_FALSE(token.cancelled());
  source.cancel(absl::DeadlineExceededError("late"));
  source.cancel(absl::CancelledError("again"));
  EXPECT_EQ(token.reason().message(), "late");
  EXPECT_EQ(calls, 1);
}

TEST(CancellationToken, FiredTokenCallsAtOnce) {
  CancellationSource source;
  source.cancel(absl::CancelledError("x"));
  int calls = 0;
  source.token().on_cancelled([&calls] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(CancellationToken, ForgottenCallbackIsDestroyedAndNotCalled) {
  CancellationSource source;
  auto held = std::make_shared<int>(0);
  const uint64_t handle = source.token().on_cancelled([held] { ++*held; });
  EXPECT_EQ(held.use_count(), 2);
  source.token().forget(handle);
  EXPECT_EQ(held.use_count(), 1);
  source.cancel(absl::CancelledError("x"));
  EXPECT_EQ(*held, 0);
}

TEST(CancellationToken, CallbackMayUseTheToken) {
  CancellationSource source;
  CancellationToken token = source.token();
  bool seen = false;
  uint64_t handle = 0;
  handle = token.on_cancelled([&] {
    seen = token.cancelled();
    token.forget(handle);
    token.on_cancelled([] {});
  });
  source.cancel(absl::CancelledError("x"));
  EXPECT_TRUE(seen);
}

// Keeps the tasks that it gets.
class KeepingExecutor : public Executor {
 public:
  bool post_clean(Task& task, TaskCost*) override {
    if (ended) return false;
    tasks.push_back(std::move(task));
    return true;
  }
  absl::Status begin_blocking(bool) override { return absl::OkStatus(); }
  void end_blocking() override {}

  std::vector<Task> tasks;
  bool ended = false;
};

TEST(CancellationToken, CallbacksOfProgramsRunOnTheExecutorInTheirStateAndInlineOnesDoNot) {
  using Work = ExecutionSlot<int, class CancellationTestTag>;
  KeepingExecutor executor;
  CancellationSource source;
  CancellationToken token = source.token();
  std::vector<int> ran;
  {
    Work::Scope scope(std::make_shared<const int>(7));
    token.on_cancelled([&] { ran.push_back(*Work::get()); });
    token.on_cancelled([&] { ran.push_back(*Work::get() + 1); });
  }
  token.on_cancelled_inline([&] { ran.push_back(0); });
  source.cancel(absl::CancelledError("x"), &executor);
  EXPECT_EQ(ran, std::vector<int>{0});
  ASSERT_EQ(executor.tasks.size(), 2u);
  for (auto& task : executor.tasks) task();
  EXPECT_EQ(ran, (std::vector<int>{0, 7, 8}));
  EXPECT_EQ(Work::get(), nullptr);
}

TEST(CancellationToken, CallbackRunsInsideCancelWhenTheExecutorHasEnded) {
  KeepingExecutor executor;
  executor.ended = true;
  CancellationSource source;
  int calls = 0;
  source.token().on_cancelled([&calls] { ++calls; });
  source.cancel(absl::CancelledError("x"), &executor);
  EXPECT_EQ(calls, 1);
}

// The state of the work usually holds the token.
TEST(CancellationToken, LastSourceDropsTheCallbacks) {
  using Work = ExecutionSlot<CancellationToken, class CancellationCycleTag>;
  std::weak_ptr<const CancellationToken> work;
  auto held = std::make_shared<int>(0);
  CancellationToken token;
  {
    CancellationSource source;
    const CancellationSource copy = source;
    token = source.token();
    const auto state = std::make_shared<const CancellationToken>(token);
    work = state;
    Work::Scope scope(state);
    token.on_cancelled([held] { ++*held; });
    source = CancellationSource();
    EXPECT_EQ(held.use_count(), 2);
  }
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_TRUE(work.expired());
  EXPECT_EQ(token.on_cancelled([held] { ++*held; }), 0);
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_FALSE(token.cancelled());
}

TEST(CancellationSource, OkReasonStillCancels) {
  CancellationSource source;
  source.cancel(absl::OkStatus());
  EXPECT_EQ(source.token().reason().code(), absl::StatusCode::kCancelled);
}

TEST(CancellationSource, RacingCancelsRunEveryCallbackOnce) {
  CancellationSource source;
  std::atomic<int> calls{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 100; ++n) source.token().on_cancelled([&calls] { ++calls; });
      source.cancel(absl::CancelledError("x"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(calls, 400);
}

}  // namespace
}  // namespace gradwire
