#include "gradwire/tests/device/core/stream.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace gradwire::lag {

Stream::Stream(Shared& shared, int device, int64_t id) : shared_(shared), device_(device), id_(id) {
  MutexLock lock(shared_.mutex_);
  set_profile_locked(shared_.profile_);
  shared_.streams_.push_back(this);
}

Stream::~Stream() {
  stop();
  MutexLock lock(shared_.mutex_);
  shared_.streams_.erase(std::find(shared_.streams_.begin(), shared_.streams_.end(), this));
}

std::string Stream::name() const { return absl::StrCat("lag:", device_, ", stream ", id_); }

void Stream::push_locked(Step&& step) {
  submitted_++;
  shared_.used_[static_cast<size_t>(device_)] = 1;
  if (stopping_ || !shared_.status_locked(device_).ok()) {
    // The step counts as done. Its kernel is the caller's, who destroys it without the lock.
    count_locked();
    return;
  }
  steps_.push_back(std::move(step));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  work_.notify_one();
}

absl::Status Stream::launch(Kernel kernel) {
  Step step;
  MutexLock lock(shared_.mutex_);
  if (absl::Status status = shared_.status_locked(device_); !status.ok()) return status;
  step.kernel = std::move(kernel);
  step.delayed = true;
  push_locked(std::move(step));
  return absl::OkStatus();
}

void Stream::launch_at_once(Kernel kernel) {
  Step step{.kernel = std::move(kernel)};
  MutexLock lock(shared_.mutex_);
  push_locked(std::move(step));
}

absl::Status Stream::wait(const Point& point) {
  MutexLock lock(shared_.mutex_);
  if (absl::Status status = shared_.status_locked(device_); !status.ok()) return status;
  if (!point.passed()) push_locked({.wait = point});
  return absl::OkStatus();
}

Point Stream::end() const {
  MutexLock lock(shared_.mutex_);
  return {const_cast<Stream*>(this), submitted_};
}

absl::StatusOr<bool> Stream::query() const {
  MutexLock lock(shared_.mutex_);
  if (absl::Status status = shared_.status_locked(device_); !status.ok()) return status;
  return done() == submitted_;
}

absl::Status Stream::synchronize(const std::string& call) { return shared_.wait(device_, {end()}, call); }

void Stream::hold() {
  MutexLock lock(shared_.mutex_);
  push_locked({.gate = ++gates_});
}

void Stream::release() {
  MutexLock lock(shared_.mutex_);
  open_gates_ = gates_;
  work_.notify_one();
}

void Stream::stop() {
  std::thread thread;
  // Destroyed without the lock, because a kernel may own an object of a user.
  std::deque<Step> dropped;
  {
    MutexLock lock(shared_.mutex_);
    stopping_ = true;
    dropped = drop_locked();
    shared_.wake_locked();
    thread = std::move(thread_);
    work_.notify_one();
  }
  if (thread.joinable()) thread.join();
}

bool Stream::started() const {
  MutexLock lock(shared_.mutex_);
  return submitted_ > 0;
}

bool Stream::ready_locked() const {
  if (steps_.empty()) return false;
  const Step& step = steps_.front();
  return step.wait.passed() && step.gate <= open_gates_;
}

void Stream::count_locked() {
  done_.store(submitted_ - steps_.size() - (running_ ? 1 : 0), std::memory_order_release);
}

std::deque<Stream::Step> Stream::drop_locked() {
  std::deque<Step> dropped;
  dropped.swap(steps_);
  count_locked();
  return dropped;
}

void Stream::wake_if_ready_locked() {
  if (ready_locked()) work_.notify_one();
}

void Stream::set_profile_locked(const Profile& profile) {
  delays_ = Delays(profile, static_cast<uint64_t>(device_) << 32 | static_cast<uint64_t>(id_));
}

std::string Stream::run_kernel(const Kernel& kernel) {
  try {
    kernel();
  } catch (const std::exception& error) {
    return absl::StrCat("a kernel failed: ", error.what());
  } catch (...) {
    return "a kernel failed with an unknown exception";
  }
  return "";
}

void Stream::run() {
  pthread_setname_np(pthread_self(), absl::StrCat("lag", device_, "/", id_).c_str());
  // Without this the system rounds short delays up by 50 us.
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  for (;;) {
    Step step;
    absl::Duration delay = absl::ZeroDuration();
    {
      MutexLock lock(shared_.mutex_);
      while (!stopping_ && !ready_locked()) work_.wait(shared_.mutex_);
      if (stopping_) return;
      step = std::move(steps_.front());
      steps_.pop_front();
      if (step.kernel == nullptr) {
        count_locked();
        shared_.wake_locked();
        continue;
      }
      running_ = true;
      if (step.delayed) delay = delays_.next();
    }
    if (delay > absl::ZeroDuration()) absl::SleepFor(delay);
    const std::string failure = run_kernel(step.kernel);
    // The objects that the kernel owns are destroyed before others see the kernel as done.
    step.kernel = nullptr;
    if (!failure.empty()) shared_.lose(device_, failure);
    MutexLock lock(shared_.mutex_);
    running_ = false;
    count_locked();
    shared_.wake_locked();
  }
}

}  // namespace gradwire::lag
