#include "gradwire/autograd/context/step_barrier_driver.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/codec/id.h"

namespace gradwire::autograd {
namespace {

const rpc::Id kA{1, 1};
const rpc::Id kB{2, 1};

class StepBarrierDriverTest : public ::testing::Test {
 protected:
  // A step of `kA` that runs until end_step().
  void begin_step() {
    driver_->arm();
    bool runs = false;
    driver_->step(kA, parameters_, absl::InfiniteFuture(),
                  [&](const absl::Status& status) { runs = status.ok(); });
    EXPECT_TRUE(runs);
  }
  void end_step() { driver_->step_ended(parameters_); }

  TimerQueue timers_;
  const std::shared_ptr<StepBarrierDriver> driver_ =
      std::make_shared<StepBarrierDriver>([this]() -> TimerQueue& { return timers_; });
  const StepBarrier::Parameters parameters_ =
      std::make_shared<const std::vector<uintptr_t>>(std::vector<uintptr_t>{1});
};

TEST_F(StepBarrierDriverTest, RequestThatPassesAtOnceHasNoTicket) {
  bool passed = false;
  EXPECT_EQ(driver_->request(kB, false, absl::InfiniteFuture(),
                             [&](const absl::Status& status) { passed = status.ok(); }),
            0u);
  EXPECT_TRUE(passed);
}

TEST_F(StepBarrierDriverTest, RequestThatHasEndedLeavesAtOnceAndBlocksNoStep) {
  begin_step();
  auto held = std::make_shared<int>(1);
  absl::Status ended;
  const uint64_t ticket =
      driver_->request(kB, false, absl::Now() + absl::Hours(1),
                       [&ended, held](absl::Status status) { ended = std::move(status); });
  ASSERT_NE(ticket, 0u);
  // A step that comes after a waiting request waits behind it.
  bool stepped = false;
  driver_->step(kA, std::make_shared<const std::vector<uintptr_t>>(std::vector<uintptr_t>{2}),
                absl::InfiniteFuture(), [&](const absl::Status& status) { stepped = status.ok(); });
  EXPECT_FALSE(stepped);
  driver_->give_up(ticket, absl::CancelledError("nobody waits"));
  EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_TRUE(stepped);
  EXPECT_EQ(driver_->waiting(), 0u);
  // The second call has no effect, and the context of the request never became one that steps wait for.
  driver_->give_up(ticket, absl::AbortedError("again"));
  EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled);
  end_step();
  EXPECT_EQ(driver_->forwarding(), 0u);
}

}  // namespace
}  // namespace gradwire::autograd
