#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/base/threads/timer_queue.h"

namespace gradwire::rpc {

// Waits until devices have reached a point in their streams, for example the end of a copy to the host. No
// thread blocks meanwhile: a device can only be asked. Thread-safe.
class FenceWatch {
 public:
  // Called once, on the executor, or on the thread that calls stop(). An error means that a device is lost,
  // or that the agent has stopped.
  using Done = absl::AnyInvocable<void(absl::Status)>;

  FenceWatch(TimerQueue& timers, std::shared_ptr<Executor> executor)
      : timers_(timers), executor_(std::move(executor)) {}

  // Calls `done` when the fence is reached.
  void watch(StreamFencePtr fence, Done done);
  // Ends all waits with `reason`, and every later one at once. The timers must run no callback afterwards.
  void stop(const absl::Status& reason);
  // Number of fences for which `done` has not returned.
  std::size_t size() const { return waits_->load(); }

 private:
  struct Entry {
    StreamFencePtr fence;
    Done done;
  };

  void poll();
  void schedule_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  TimerQueue& timers_;
  const std::shared_ptr<Executor> executor_;
  // Shared with the tasks that call `done`.
  const std::shared_ptr<std::atomic<std::size_t>> waits_ = std::make_shared<std::atomic<std::size_t>>(0);

  mutable Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  // The time until the next poll. It grows while no fence is reached.
  absl::Duration pause_ ABSL_GUARDED_BY(mutex_);
  bool scheduled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
