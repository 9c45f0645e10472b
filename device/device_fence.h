#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/stream_fence.h"

namespace gradwire::device {

// A StreamFence made of one event for each device. Thread-safe.
class DeviceFence : public StreamFence {
 public:
  // Records the current streams of this thread on all devices that are in use. nullptr if none is. Lost
  // devices are left out. Keeps the memory of `tensors`, as record_for() does. Does not throw.
  static StreamFencePtr record(const std::vector<at::Tensor>& tensors = {});
  // As above, only for the devices of `tensors`, and wait() reports lost ones. It also notifies the allocator
  // that the waiting streams use the memory of these tensors, which may have been allocated for other
  // streams.
  static StreamFencePtr record_for(const std::vector<at::Tensor>& tensors);

  absl::Status wait() const override;
  absl::StatusOr<bool> reached() const override;

 private:
  struct Point {
    c10::Stream stream;
    c10::Event event;
  };

  static StreamFencePtr record_on(const std::vector<c10::Device>& devices,
                                  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages,
                                  bool strict);

  // Whether wait() reports lost devices. A fence on all devices does not: what waits for it may have nothing
  // to do with the lost one, and work on that one fails by itself.
  bool strict_ = false;
  // The first failure while the fence was recorded.
  absl::Status failure_;
  // c10::Event is not thread-safe.
  mutable Mutex mutex_;
  std::vector<Point> points_ ABSL_GUARDED_BY(mutex_);
  // Weak references: the fence must neither keep the memory nor count as another owner of it.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
};

// Has fences recorded from now on (base/threads/stream_fence.h). Call when the process begins to use its
// accelerator.
void record_fences();

}  // namespace gradwire::device
