#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/tests/device/core/shared.h"
#include "gradwire/tests/device/core/stream.h"

namespace gradwire::lag {

// An event as CUDA's. record() marks the present end of a stream. A wait concerns the last record() before
// the wait, also if the event is recorded again afterwards. An event that was never recorded counts as
// passed.
//
// Thread-safe. An Event may be destroyed while streams wait for it: they wait on.
class Event {
 public:
  // `timed`: elapsed() works, and each record() is a step of its own in the stream.
  Event(Shared& shared, int device, bool timed);
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();

  int device() const { return device_; }

  // Fails with InvalidArgument if the stream belongs to another device than the event.
  absl::Status record(Stream& stream);
  // Makes the stream wait for the last record().
  absl::Status block(Stream& stream) const;
  absl::StatusOr<bool> query() const;
  absl::Status synchronize() const;
  // The time from this event to `later`. Both must be timed and passed.
  absl::StatusOr<absl::Duration> elapsed(const Event& later) const;

 private:
  struct Record {
    Point point;
    // Written by the stream before `point` is passed.
    std::shared_ptr<absl::Time> time;
  };
  Record last() const;

  Shared& shared_;
  const int device_;
  const bool timed_;

  mutable Mutex mutex_;
  Record last_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::lag
