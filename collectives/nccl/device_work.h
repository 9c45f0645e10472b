#pragma once

#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/group_backend.h"
#include "gradwire/collectives/nccl/group_watch.h"

namespace gradwire::collectives::nccl {

// An operation on the streams of one or more devices. States: not yet launched, under way after record(),
// ended. Thread-safe.
class DeviceWork final : public WatchedWork {
 public:
  // The operation ends when the work that is now in these streams has ended. Called once. Throws CUDA's
  // errors.
  void record(const std::vector<c10::cuda::CUDAStream>& streams);

  bool done() override;
  absl::Status device_error() override;
  void fail(const absl::Status& reason) override;

  // The result; nullopt until the operation has ended.
  std::optional<absl::Status> ended();
  // Makes the current stream of each of its devices wait for the operation.
  void order_current_streams();

 private:
  bool done_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::vector<c10::cuda::CUDAEvent> events_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> verdict_ ABSL_GUARDED_BY(mutex_);
  absl::Status device_error_ ABSL_GUARDED_BY(mutex_);
};

// Checks that the calling thread does not record a CUDA graph on one of these devices: the end of an
// operation in a graph cannot be observed. Errors: FailedPrecondition. Throws CUDA's errors.
absl::Status check_not_capturing(const std::vector<c10::Device>& devices);

// The device work of the calling thread's last operation, and the group of that operation.
struct LastWork {
  const GroupWatch* group = nullptr;
  std::shared_ptr<DeviceWork> work;
  // See EnqueuedWork.
  bool blocks = false;
};
// The calling thread's last work.
LastWork& last_work();

// A DeviceWork as the result of GroupBackend::take_enqueued.
class EnqueuedWork final : public Enqueued {
 public:
  // `blocks`: order_current_stream() also blocks the host until the operation has ended, and throws its
  // Error. A barrier needs that.
  EnqueuedWork(std::shared_ptr<DeviceWork> work, bool blocks) : work_(std::move(work)), blocks_(blocks) {}

  std::optional<absl::Status> ended() const override { return work_->ended(); }
  void order_current_stream() override;

 private:
  const std::shared_ptr<DeviceWork> work_;
  const bool blocks_;
};

}  // namespace gradwire::collectives::nccl
