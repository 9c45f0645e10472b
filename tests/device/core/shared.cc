#include "gradwire/tests/device/core/shared.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/tests/device/core/stream.h"

namespace gradwire::lag {
namespace {

std::string thread_name() {
  char name[32] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

}  // namespace

bool Point::passed() const { return stream == nullptr || stream->done() >= step; }

bool all_passed(const std::vector<Point>& points) {
  return std::all_of(points.begin(), points.end(), [](const Point& point) { return point.passed(); });
}

absl::Status Shared::status(int device) const {
  MutexLock lock(mutex_);
  return status_locked(device);
}

absl::Status Shared::status_locked(int device) const { return lost_[static_cast<size_t>(device)]; }

bool Shared::used(int device) const {
  MutexLock lock(mutex_);
  return used_[static_cast<size_t>(device)] != 0;
}

void Shared::lose(int device, const std::string& why) {
  // Destroyed without the lock, because a kernel may own an object of a user.
  std::vector<std::deque<Stream::Step>> dropped;
  MutexLock lock(mutex_);
  if (!status_locked(device).ok()) return;
  lost_[static_cast<size_t>(device)] = absl::UnavailableError(absl::StrCat(
      "device lag:", device, " is lost: ", why, "; every call fails until the device is restored"));
  for (Stream* stream : streams_) {
    if (stream->device() != device) continue;
    stream->assume_locked();
    dropped.push_back(stream->drop_locked());
  }
  wake_locked();
}

void Shared::restore(int device) {
  MutexLock lock(mutex_);
  lost_[static_cast<size_t>(device)] = absl::OkStatus();
}

absl::Status Shared::wait(int device, const std::vector<Point>& points, const std::string& call) {
  MutexLock lock(mutex_);
  const absl::Time deadline = absl::Now() + max_host_wait_;
  const bool blocked = !all_passed(points) && status_locked(device).ok();
  wait_count_++;
  if (blocked) blocked_count_++;
  if (waits_.size() == kMaxWaits) waits_.erase(waits_.begin());
  waits_.push_back({thread_name(), ::syscall(SYS_gettid), call, device, blocked});
  waiting_hosts_++;
  absl::Status status = status_locked(device);
  while (status.ok() && !all_passed(points)) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      status = absl::DeadlineExceededError(
          absl::StrCat(call, ": device lag:", device, " has not finished after ",
                       absl::FormatDuration(max_host_wait_), "; release streams that a test holds"));
      break;
    }
    passed_.wait_for(mutex_, left);
    status = status_locked(device);
  }
  waiting_hosts_--;
  return status;
}

std::vector<HostWait> Shared::host_waits() const {
  MutexLock lock(mutex_);
  return waits_;
}

int64_t Shared::host_wait_count() const {
  MutexLock lock(mutex_);
  return wait_count_;
}

int64_t Shared::host_blocked_count() const {
  MutexLock lock(mutex_);
  return blocked_count_;
}

int64_t Shared::event_count() const {
  MutexLock lock(mutex_);
  return events_;
}

Profile Shared::profile() const {
  MutexLock lock(mutex_);
  return profile_;
}

void Shared::set_profile(const Profile& profile) {
  MutexLock lock(mutex_);
  profile_ = profile;
  for (Stream* stream : streams_) {
    stream->assume_locked();
    stream->set_profile_locked(profile);
  }
}

void Shared::wake_locked() {
  for (Stream* stream : streams_) {
    stream->assume_locked();
    stream->wake_if_ready_locked();
  }
  if (waiting_hosts_ > 0) passed_.notify_all();
}

}  // namespace gradwire::lag
