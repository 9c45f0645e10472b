#pragma once

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/mpi/mpi_header.h"

namespace gradwire::collectives {

// The MPI of this process: there is one. Thread-safe.
class MpiRuntime {
 public:
  // The first call initialises MPI, with MPI_THREAD_MULTIPLE where it is to be had, unless the program has
  // done so; what was initialised here is finalised when the process ends. FailedPrecondition where MPI has
  // been finalised, and where no MPI launcher has started the process.
  static absl::StatusOr<MpiRuntime*> get();

  // In MPI_COMM_WORLD.
  int rank() const { return rank_; }
  int size() const { return size_; }
  // The same for all that were launched together, different otherwise; empty where the launcher does not say.
  const std::string& job() const { return job_; }

  // Calls into MPI, one at a time where MPI wants that; `function` returns MPI's code. `name` is for
  // messages.
  template <class Function>
  absl::Status call(const char* name, Function function) {
    int code;
    if (one_at_a_time_) {
      MutexLock lock(mutex_);
      code = function();
    } else {
      code = function();
    }
    return code == MPI_SUCCESS ? absl::OkStatus() : error(name, code);
  }

  // InvalidArgument for what the caller gave, ResourceExhausted, else Unavailable; with MPI's own words.
  static absl::Status error(const char* name, int code);

  // Something is under way that may never end: the process will leave without MPI_Finalize, which would wait
  // for it.
  void give_up_finalising() { finalises_.store(false); }
  bool finalised() const;

 private:
  MpiRuntime() = default;
  absl::Status start();
  static void at_exit();

  // Set once.
  int rank_ = 0;
  int size_ = 1;
  std::string job_;
  bool one_at_a_time_ = false;

  std::atomic<bool> finalises_{false};
  Mutex mutex_;
};

}  // namespace gradwire::collectives
