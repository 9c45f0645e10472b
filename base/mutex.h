#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#if defined(__SANITIZE_THREAD__)
#define GRADWIRE_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GRADWIRE_THREAD_SANITIZER 1
#endif
#endif

namespace gradwire {

// Thin annotated classes over the standard ones. absl::Mutex would serve, but the system's prebuilt copy is
// invisible to ThreadSanitizer, which then reports correct code.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  bool try_lock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Callers wait in a loop that checks the condition they wait for.
class CondVar {
 public:
  void wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  // False when the time was up (at the latest after an hour, however long the timeout). An infinite duration
  // waits for ever.
  bool wait_for(Mutex& mutex, absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (timeout == absl::InfiniteDuration()) {
      wait(mutex);
      return true;
    }
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    // Rounded up, so that a loop around this does not spin through the last microsecond.
    const auto bounded = absl::ToChronoMicroseconds(
        std::clamp(timeout, absl::ZeroDuration(), absl::Hours(1)) + absl::Nanoseconds(999));
    const bool signalled =
        condition_.wait_until(lock, WaitClock::now() + bounded) == std::cv_status::no_timeout;
    lock.release();
    return signalled;
  }

  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
#ifdef GRADWIRE_THREAD_SANITIZER
  // The monotonic clock makes pthread_cond_clockwait of the wait, which clang 14's ThreadSanitizer does not
  // intercept.
  using WaitClock = std::chrono::system_clock;
#else
  using WaitClock = std::chrono::steady_clock;
#endif
  std::condition_variable condition_;
};

}  // namespace gradwire
