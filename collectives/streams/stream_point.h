#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/group_backend.h"

// Streams of accelerators, by libtorch's interface that is common to all of them. For the CPU, which has no
// streams, everything here does nothing. Functions throw the errors of the device.
namespace gradwire::collectives {

// A point in the work of a stream. May be used by several threads.
class StreamPoint {
 public:
  // A point before all work.
  StreamPoint() = default;
  // The end of the work that the calling thread's current stream of `device` has now. A device without an
  // index means the thread's current device.
  static StreamPoint of_current(c10::Device device);

  // Whether the device has come to the point.
  bool passed() const { return event_ == nullptr || event_->query(); }
  // Makes the calling thread's current stream of the point's device wait for the point. Does not block the
  // host.
  void block_current() const;

 private:
  std::shared_ptr<const c10::Event> event_;
};

// While it exists, the calling thread's current stream of the device is one from libtorch's pool, so that the
// thread's work does not wait for the work of others.
class SideStream {
 public:
  explicit SideStream(c10::Device device);

 private:
  std::optional<c10::StreamGuard> guard_;
};

// The part of an operation that still runs on a device when its future is done: the work before a point.
// Thread-safe.
class EnqueuedPoint final : public Enqueued {
 public:
  // Sets the point. Called before the future of the operation is done.
  void set(StreamPoint point);
  std::optional<absl::Status> ended() const override;
  void order_current_stream() override;

 private:
  StreamPoint point() const;

  mutable Mutex mutex_;
  StreamPoint point_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::collectives
