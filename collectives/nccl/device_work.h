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

// An operation on the streams of one or more devices: to be launched, under way, ended. Thread-safe.
class DeviceWork final : public WatchedWork {
 public:
  // It has ended when what is in these streams now has. Once; throws CUDA's errors.
  void record(const std::vector<c10::cuda::CUDAStream>& streams);

  bool done() override;
  void fail(const absl::Status& reason) override;

  // None while it is under way.
  std::optional<absl::Status> ended();
  // The current stream of each of its devices goes on behind it.
  void order_current_streams();

 private:
  bool done_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  std::vector<c10::cuda::CUDAEvent> events_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> verdict_ ABSL_GUARDED_BY(mutex_);
};

// Device work that the calling thread's last operation left, and its group.
struct LastWork {
  const GroupWatch* group = nullptr;
  std::shared_ptr<DeviceWork> work;
  // As EnqueuedWork's.
  bool blocks = false;
};
LastWork& last_work();

// The form in which the group hands it out.
class EnqueuedWork final : public Enqueued {
 public:
  // `blocks`: ordering the stream also waits on the host until it has ended, and throws its Error: a barrier.
  EnqueuedWork(std::shared_ptr<DeviceWork> work, bool blocks) : work_(std::move(work)), blocks_(blocks) {}

  std::optional<absl::Status> ended() const override { return work_->ended(); }
  void order_current_stream() override;

 private:
  const std::shared_ptr<DeviceWork> work_;
  const bool blocks_;
};

}  // namespace gradwire::collectives::nccl
