#include "gradwire/collectives/nccl/device_work.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::collectives::nccl {

void DeviceWork::record(const std::vector<c10::cuda::CUDAStream>& streams) {
  // Recorded without the lock, because CUDA calls may block; stored in one step, so that done() never sees a
  // part of them.
  std::vector<c10::cuda::CUDAEvent> events(streams.size());
  for (std::size_t i = 0; i < streams.size(); ++i) events[i].record(streams[i]);
  MutexLock lock(mutex_);
  events_ = std::move(events);
}

// The first verdict stays: an error from fail() before the events have ended, or the result of the events.
// Before record() no events exist, and the operation is under way.
bool DeviceWork::done_locked() {
  if (verdict_.has_value()) return true;
  if (events_.empty()) return false;
  try {
    // Another thread may record a CUDA graph; without this guard a query would end that recording with an
    // error.
    const c10::cuda::CUDAStreamCaptureModeGuard others_may_capture(cudaStreamCaptureModeThreadLocal);
    for (const c10::cuda::CUDAEvent& event : events_) {
      if (!event.query()) return false;
    }
    verdict_ = absl::OkStatus();
  } catch (...) {
    // CUDA reports an error of any kernel at the next call, and the device stays unusable.
    device_error_ = caught("the GPU has failed while the operation was under way; restart the process");
    verdict_ = device_error_;
  }
  return true;
}

bool DeviceWork::done() {
  MutexLock lock(mutex_);
  return done_locked();
}

absl::Status DeviceWork::device_error() {
  MutexLock lock(mutex_);
  return device_error_;
}

void DeviceWork::fail(const absl::Status& reason) {
  MutexLock lock(mutex_);
  if (!verdict_.has_value()) verdict_ = reason;
}

std::optional<absl::Status> DeviceWork::ended() {
  MutexLock lock(mutex_);
  done_locked();
  return verdict_;
}

void DeviceWork::order_current_streams() {
  MutexLock lock(mutex_);
  for (c10::cuda::CUDAEvent& event : events_) {
    event.block(c10::cuda::getCurrentCUDAStream(event.device_index()));
  }
}

absl::Status check_not_capturing(const std::vector<c10::Device>& devices) {
  for (const c10::Device device : devices) {
    const c10::cuda::CUDAGuard guard(device);
    if (c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the current stream of ", device.str(),
                     " records a CUDA graph; the nccl backend cannot run in a graph: end the capture first"));
  }
  return absl::OkStatus();
}

LastWork& last_work() {
  thread_local LastWork last;
  return last;
}

void EnqueuedWork::order_current_stream() {
  work_->order_current_streams();
  if (!blocks_) return;
  // The loop ends at the latest at the operation's deadline: then the watchdog fails the work.
  std::optional<absl::Status> ended;
  for (int round = 0; !(ended = work_->ended()).has_value(); ++round) {
    if (round < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  throw_if_error(*ended);
}

}  // namespace gradwire::collectives::nccl
