#pragma once

#include <memory>
#include <utility>

#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"

namespace gradwire::tests {

// Handlers that wait here do so until the test opens the gate. One for the process. Thread-safe.
class Gate {
 public:
  static Gate& instance() {
    static auto* gate = new Gate;
    return *gate;
  }
  // Is ready while the gate is open.
  Future<void> wait() {
    MutexLock lock(mutex_);
    return promise_->future();
  }
  void open() {
    std::shared_ptr<Promise<void>> opened;
    {
      MutexLock lock(mutex_);
      if (std::exchange(is_open_, true)) return;
      opened = promise_;
    }
    opened->set_value();
  }
  void close() {
    MutexLock lock(mutex_);
    if (std::exchange(is_open_, false)) promise_ = std::make_shared<Promise<void>>();
  }

 private:
  Mutex mutex_;
  bool is_open_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Promise<void>> promise_ ABSL_GUARDED_BY(mutex_) = std::make_shared<Promise<void>>();
};

}  // namespace gradwire::tests
