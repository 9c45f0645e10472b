#pragma once

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/mpi/mpi_header.h"

namespace gradwire::collectives {

// The MPI library in this process; there is only one. Thread-safe.
class MpiRuntime {
 public:
  // The first call initialises MPI, with MPI_THREAD_MULTIPLE if MPI supports it, unless the program has
  // already done so. If this call initialised MPI, MPI is finalised when the process exits. Errors:
  // FailedPrecondition if MPI has been finalised, or if no MPI launcher started the process.
  static absl::StatusOr<MpiRuntime*> get();

  // The rank and the size in MPI_COMM_WORLD.
  int rank() const { return rank_; }
  int size() const { return size_; }
  // An id that is equal for all processes of one launch and differs between launches; empty if the launcher
  // gives none.
  const std::string& job() const { return job_; }

  // Calls a function of MPI. If MPI does not support concurrent calls, the calls run one at a time.
  // `function` returns MPI's code; `name` is used in messages. Errors: as error().
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

  // The Status for MPI's code, with MPI's own message: InvalidArgument for errors in arguments,
  // ResourceExhausted if memory is missing, else Unavailable.
  static absl::Status error(const char* name, int code);

  // The process will exit without MPI_Finalize. Called when a request may never end: MPI_Finalize would wait
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

  const ProcessMark mark_;
  std::atomic<bool> finalises_{false};
  Mutex mutex_;
};

}  // namespace gradwire::collectives
