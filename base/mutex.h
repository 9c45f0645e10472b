#pragma once

#include "gradwire/base/cpp20.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#if defined(__SANITIZE_THREAD__)
#define GRADWIRE_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GRADWIRE_THREAD_SANITIZER 1
#endif
#endif

namespace gradwire {

namespace internal {
// How many forks lie between the first process of the program and this one.
extern std::atomic<uint32_t> process_epoch;
}  // namespace internal

// Remembers in which process an object was made. In a forked child the object does nothing, because a thread
// that does not exist there may have locked its mutex (base/fork.h). Thread-safe.
class ProcessMark {
 public:
  ProcessMark() noexcept : epoch_(internal::process_epoch.load(std::memory_order_relaxed)) {}

  // Whether this is the process that made the object, rather than a forked child of it.
  bool here() const noexcept { return epoch_ == internal::process_epoch.load(std::memory_order_relaxed); }
  // OK if here(). FailedPrecondition otherwise, which begins with `what` and names the process of the object.
  absl::Status check(absl::string_view what) const { return here() ? absl::OkStatus() : refusal(what); }
  // The same for a text that is made only then.
  template <std::invocable Describe>
  absl::Status check(Describe&& what) const {
    return here() ? absl::OkStatus() : refusal(what());
  }

 private:
  absl::Status refusal(absl::string_view what) const;

  uint32_t epoch_;
};

// Annotated wrappers of the standard classes. They replace absl::Mutex, because the system's prebuilt Abseil
// is not instrumented for ThreadSanitizer, which would then report correct code.
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

// A mutex of something that belongs to the process, which a forked child goes on using. fork() waits until no
// thread holds one, so the child finds it free, and what it guards whole. Hold it briefly, and do not fork
// meanwhile.
class ABSL_LOCKABLE ProcessMutex : public Mutex {
 public:
  ProcessMutex();
  ~ProcessMutex();

 private:
  friend struct ProcessMutexes;
  ProcessMutex* previous_;
  ProcessMutex* next_;
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

// A condition variable for Mutex. Waits may wake spuriously: callers wait in a loop that checks their
// condition.
class CondVar {
 public:
  CondVar() : condition_() {}
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;
  // In a forked child it would wait for threads that exist only in the parent.
  ~CondVar() {
    if (mark_.here()) condition_.~condition_variable();
  }

  void wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  // Returns false after `timeout`. A finite timeout is limited to one hour; an infinite one never expires.
  bool wait_for(Mutex& mutex, absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (timeout == absl::InfiniteDuration()) {
      wait(mutex);
      return true;
    }
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    // Rounded up, so that a loop around this wait does not spin through the last microsecond.
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
  // With the monotonic clock the wait would call pthread_cond_clockwait, which clang 14's ThreadSanitizer
  // does not intercept.
  using WaitClock = std::chrono::system_clock;
#else
  using WaitClock = std::chrono::steady_clock;
#endif
  const ProcessMark mark_;
  union {
    std::condition_variable condition_;
  };
};

}  // namespace gradwire
