#include "gradwire/collectives/group/operation_runner.h"

#include "absl/strings/str_cat.h"
#include "gradwire/base/log.h"
#include "gradwire/collectives/group/consistency.h"

namespace gradwire::collectives {

std::shared_ptr<GroupBackend> OperationRunner::backend() const {
  MutexLock lock(mutex_);
  return backend_;
}

absl::Status OperationRunner::check_peer(const at::Tensor& tensor, int peer) const {
  const std::shared_ptr<GroupBackend> open = backend();
  return open != nullptr ? open->check_peer(tensor.device(), peer) : closed_error();
}

absl::Status OperationRunner::closed_error() const {
  return absl::FailedPreconditionError(
      absl::StrCat("the process group \"", identity_->name, "\" has been destroyed"));
}

absl::Status OperationRunner::interruption() const {
  MutexLock lock(mutex_);
  return aborted_;
}

absl::Status OperationRunner::compare_with_others(RunContext& run, const OperationRecord& record,
                                                  uint64_t sequence, c10::Device device) const {
  if (record.operation == Operation::kMonitoredBarrier || record.operation == Operation::kNewGroup) {
    return absl::OkStatus();
  }
  return check_consistency(run, record, sequence, device);
}

void OperationRunner::abort(const std::string& reason) {
  const absl::Status status = absl::AbortedError(absl::StrCat("aborted: ", reason));
  std::shared_ptr<GroupBackend> backend;
  {
    MutexLock lock(mutex_);
    if (aborted_.ok()) aborted_ = status;
    backend = backend_;
  }
  log(LogLevel::kInfo, "process group \"", identity_->name, "\": rank ", identity_->rank,
      " aborts the group: ", reason);
  // Called without the lock and without a turn: the operation that is to end holds the turn. The shared
  // pointer keeps the backend alive if close() takes it away meanwhile.
  if (backend != nullptr) backend->abort(status);
}

// The backend must not be destroyed while an operation uses it, and no operation may wait indefinitely. So:
//   1. Refuse new asynchronous operations.
//   2. Wait for a turn behind all operations that were called. If that takes longer than the timeout of an
//      operation, abort them, and wait until they have ended.
//   3. In this turn, mark the runner as closed and take the backend away. Synchronous operations that come
//      later find the mark.
//   4. Destroy the backend outside the lock, and join the thread. Its queue is empty: its tasks were before
//      this turn.
void OperationRunner::close() {
  MutexLock one_at_a_time(close_mutex_);
  if (close_called_) return;
  close_called_ = true;
  async_.close();
  const uint64_t ticket = ticket_lock_.take();
  if (!ticket_lock_.wait_until(ticket, deadline(coarse_now()))) {
    abort("the group is being destroyed");
    ticket_lock_.wait(ticket);
  }
  closed_ = true;
  std::shared_ptr<GroupBackend> backend;
  {
    MutexLock lock(mutex_);
    backend.swap(backend_);
  }
  ticket_lock_.leave(ticket);
  backend.reset();
  async_.join();
  log(LogLevel::kInfo, "process group \"", identity_->name, "\": rank ", identity_->rank, " has left");
}

}  // namespace gradwire::collectives
