#include "gradwire/rpc/order/fence_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>

#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/executor_without_memory.h"
#include "gradwire/base/testing/fake_fence.h"
#include "gradwire/base/threads/thread_pool.h"

namespace gradwire::rpc {
namespace {

class FenceWatchTest : public ::testing::Test {
 protected:
  ~FenceWatchTest() override {
    watch_.stop(absl::CancelledError("the end"));
    executor_->shutdown();
    timers_.shutdown();
  }
  // Watches a new fence. `ended` gets the code with which the wait ends.
  std::shared_ptr<FakeFence> watch(std::atomic<int>& ended) {
    auto fence = std::make_shared<FakeFence>();
    watch_.watch(fence, [&ended](const absl::Status& status) { ended = static_cast<int>(status.code()); });
    return fence;
  }

  TimerQueue timers_;
  const std::shared_ptr<ThreadPool> executor_ = std::make_shared<ThreadPool>(ThreadPool::Options());
  FenceWatch watch_{timers_, executor_};
};

constexpr int kWaiting = -1;

TEST_F(FenceWatchTest, EachWaitEndsWhenItsFenceIsReached) {
  std::atomic<int> first{kWaiting}, second{kWaiting};
  const std::shared_ptr<FakeFence> slow = watch(first);
  const std::shared_ptr<FakeFence> fast = watch(second);
  fast->done = true;
  EXPECT_TRUE(eventually([&] { return second == static_cast<int>(absl::StatusCode::kOk); }));
  EXPECT_EQ(first, kWaiting);
  slow->done = true;
  EXPECT_TRUE(eventually([&] { return first == static_cast<int>(absl::StatusCode::kOk); }));
  EXPECT_TRUE(eventually([&] { return watch_.size() == 0; }));
  // Nothing is polled any more.
  const int polls = slow->polls;
  std::atomic<int> third{kWaiting};
  watch(third)->done = true;
  EXPECT_TRUE(eventually([&] { return third != kWaiting; }));
  EXPECT_EQ(slow->polls, polls);
}

TEST_F(FenceWatchTest, ALostDeviceEndsTheWaitWithItsError) {
  std::atomic<int> ended{kWaiting};
  watch(ended)->lost = true;
  EXPECT_TRUE(eventually([&] { return ended == static_cast<int>(absl::StatusCode::kInternal); }));
}

TEST_F(FenceWatchTest, AFenceThatThrowsEndsItsOwnWait) {
  class Throwing : public StreamFence {
   public:
    absl::Status wait() const override { return absl::OkStatus(); }
    absl::StatusOr<bool> reached() const override { throw std::runtime_error("the device's library fails"); }
  };
  std::atomic<int> first{kWaiting}, failing{kWaiting};
  const std::shared_ptr<FakeFence> good = watch(first);
  watch_.watch(std::make_shared<Throwing>(),
               [&](const absl::Status& status) { failing = static_cast<int>(status.code()); });
  EXPECT_TRUE(eventually([&] { return failing == static_cast<int>(absl::StatusCode::kUnknown); }));
  EXPECT_EQ(first, kWaiting);
  good->done = true;
  EXPECT_TRUE(eventually([&] { return first == static_cast<int>(absl::StatusCode::kOk); }));
}

TEST_F(FenceWatchTest, WaitsEndThoughThereIsNoMemoryForTheirTasks) {
  TimerQueue timers;
  FenceWatch watch(timers, std::make_shared<ExecutorWithoutMemory>());
  std::atomic<int> ended{0};
  for (int i = 0; i < 2; ++i) {
    auto fence = std::make_shared<FakeFence>();
    fence->done = true;
    watch.watch(fence, [&](const absl::Status&) { ++ended; });
  }
  EXPECT_TRUE(eventually([&] { return ended == 2 && watch.size() == 0; }));
}

TEST_F(FenceWatchTest, StopEndsAllWaitsAndLaterOnes) {
  std::atomic<int> before{kWaiting}, after{kWaiting};
  watch(before);
  EXPECT_EQ(watch_.size(), 1u);
  watch_.stop(absl::CancelledError("stopped"));
  EXPECT_EQ(before, static_cast<int>(absl::StatusCode::kCancelled));
  watch(after);
  EXPECT_EQ(after, static_cast<int>(absl::StatusCode::kCancelled));
  EXPECT_EQ(watch_.size(), 0u);
}

}  // namespace
}  // namespace gradwire::rpc
