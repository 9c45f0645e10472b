#pragma once

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "gradwire/base/mutex.h"

namespace gradwire::gateway {

// The action that ends the present step of a call when its client cancels it. A reactor calls run() in
// OnCancel(), which gRPC may call beside any step. Thread-safe.
class CancelAction {
 public:
  // gRPC calls OnCancel() after the constructor of the reactor. ThreadSanitizer does not see that order in a
  // gRPC that is not instrumented; it sees this lock.
  CancelAction() { MutexLock lock(mutex_); }

  // Replaces the action. If the client has cancelled the call, runs the new one instead, and returns false.
  bool set(absl::AnyInvocable<void()> action) {
    {
      MutexLock lock(mutex_);
      if (!cancelled_) {
        action_ = std::move(action);
        return true;
      }
    }
    action();
    return false;
  }

  void run() {
    absl::AnyInvocable<void()> action;
    {
      MutexLock lock(mutex_);
      cancelled_ = true;
      action = std::exchange(action_, nullptr);
    }
    if (action) action();
  }

 private:
  Mutex mutex_;
  absl::AnyInvocable<void()> action_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::gateway
