#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/tests/device/core/profile.h"

namespace gradwire::lag {

class Stream;

// A place in the order of a stream: everything that was put into the stream before it. A default Point is
// passed from the start.
struct Point {
  Stream* stream = nullptr;
  uint64_t step = 0;

  // Whether the stream has done everything up to this point.
  bool passed() const;
};

// Whether the streams have passed all of these points.
bool all_passed(const std::vector<Point>& points);

// One call in which a host thread waited for a device.
struct HostWait {
  // The name and the kernel's id of the thread.
  std::string thread;
  int64_t thread_id = 0;
  // The call: "stream.synchronize", "event.synchronize", "device.synchronize", "item", "copy", "allocate", or
  // the name of an operator whose output size depends on data.
  std::string call;
  int device = 0;
  // The device had not finished when the call began.
  bool blocked = false;
};

// The state that all streams and events of one accelerator share: one mutex for all their queues, the state
// of each device, and counts. One mutex is enough, because kernels run without it. Thread-safe.
class Shared {
 public:
  Shared(int devices, Profile profile, absl::Duration max_host_wait)
      : devices_(devices),
        max_host_wait_(max_host_wait),
        profile_(profile),
        lost_(static_cast<size_t>(devices)),
        used_(static_cast<size_t>(devices)) {}

  int devices() const { return devices_; }

  // OK, or the error with which the device was lost.
  absl::Status status(int device) const;
  // Whether the device has been used.
  bool used(int device) const;
  // Makes the device fail with `why`: its streams drop what they have not started. Later calls for the device
  // fail with this error until restore(). The first error wins.
  void lose(int device, const std::string& why);
  void restore(int device);

  // Blocks the calling thread until all points are passed. Counts one wait. Fails with the device's error if
  // it is lost, and with DeadlineExceeded after `max_host_wait`.
  absl::Status wait(int device, const std::vector<Point>& points, const std::string& call);

  // The last waits, at most `kMaxWaits`, and their number since the start.
  std::vector<HostWait> host_waits() const;
  int64_t host_wait_count() const;
  int64_t host_blocked_count() const;
  // The number of Event objects that exist.
  int64_t event_count() const;

  Profile profile() const;
  void set_profile(const Profile& profile);

 private:
  friend class Event;
  friend class Stream;

  static constexpr size_t kMaxWaits = 1000;

  absl::Status status_locked(int device) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Wakes the streams and host threads that wait for a point that is now passed.
  void wake_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int devices_;
  const absl::Duration max_host_wait_;

  mutable Mutex mutex_;
  CondVar passed_;
  int waiting_hosts_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Stream*> streams_ ABSL_GUARDED_BY(mutex_);
  Profile profile_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Status> lost_ ABSL_GUARDED_BY(mutex_);
  std::vector<char> used_ ABSL_GUARDED_BY(mutex_);
  std::vector<HostWait> waits_ ABSL_GUARDED_BY(mutex_);
  int64_t wait_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t blocked_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t events_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire::lag
