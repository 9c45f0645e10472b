#include "gradwire/base/threads/cancellation.h"

#include <thread>
#include <vector>

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
