#include "gradwire/tests/device/core/event.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace gradwire::lag {

Event::Event(Shared& shared, int device, bool timed) : shared_(shared), device_(device), timed_(timed) {
  MutexLock lock(shared_.mutex_);
  shared_.events_++;
}

Event::~Event() {
  MutexLock lock(shared_.mutex_);
  shared_.events_--;
}

absl::Status Event::record(Stream& stream) {
  if (stream.device() != device_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "event of device lag:", device_, " cannot be recorded: got a stream of lag:", stream.device(),
        ", expected one of lag:", device_));
  }
  if (absl::Status status = shared_.status(device_); !status.ok()) return status;
  Record record;
  if (timed_) {
    record.time = std::make_shared<absl::Time>();
    stream.launch_at_once([time = record.time] { *time = absl::Now(); });
  }
  record.point = stream.end();
  MutexLock lock(mutex_);
  last_ = record;
  return absl::OkStatus();
}

absl::Status Event::block(Stream& stream) const { return stream.wait(last().point); }

absl::StatusOr<bool> Event::query() const {
  if (absl::Status status = shared_.status(device_); !status.ok()) return status;
  return last().point.passed();
}

absl::Status Event::synchronize() const { return shared_.wait(device_, {last().point}, "event.synchronize"); }

absl::StatusOr<absl::Duration> Event::elapsed(const Event& later) const {
  const Record from = last();
  const Record to = later.last();
  if (from.time == nullptr || to.time == nullptr || !from.point.passed() || !to.point.passed()) {
    return absl::FailedPreconditionError(
        "the time between two events is not known: both must be timed, recorded and passed");
  }
  return *to.time - *from.time;
}

Event::Record Event::last() const {
  MutexLock lock(mutex_);
  return last_;
}

}  // namespace gradwire::lag
