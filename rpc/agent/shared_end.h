#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "gradwire/base/mutex.h"

namespace gradwire::rpc {

// An end that several threads may ask for, and that is carried out once. The first thread does it. Those that
// come before it is over wait and return its status, because they asked for the same and it may have failed.
// Those that come afterwards find everything ended: OK. Thread-safe.
class SharedEnd {
 public:
  absl::Status run(absl::FunctionRef<absl::Status()> end) {
    {
      MutexLock lock(mutex_);
      if (state_ == State::kOver) return absl::OkStatus();
      if (state_ == State::kRuns) {
        ++waiting_;
        while (state_ != State::kOver) over_.wait(mutex_);
        --waiting_;
        return status_;
      }
      state_ = State::kRuns;
    }
    absl::Status status = end();
    MutexLock lock(mutex_);
    state_ = State::kOver;
    status_ = status;
    over_.notify_all();
    return status;
  }
  // Number of threads that wait for the end.
  std::size_t waiting() const {
    MutexLock lock(mutex_);
    return waiting_;
  }

 private:
  enum class State { kNotBegun, kRuns, kOver };

  mutable Mutex mutex_;
  CondVar over_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kNotBegun;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire::rpc
