#include "gradwire/collectives/group/operation_runner.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {
namespace {

// The size of one rank's record. A shorter text is padded with zeros.
constexpr int64_t kRecordBytes = 256;
constexpr std::size_t kMostText = 240;

std::string text_in(const at::Tensor& tensor) {
  const char* data = static_cast<const char*>(tensor.const_data_ptr());
  std::string text(data, strnlen(data, kMostText));
  // The text comes from another process and goes into error messages: replace characters that do not print.
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return text;
}

}  // namespace

std::string describe(const OperationRecord& record) {
  std::string text(name_of(record.operation));
  if (record.dtype != nullptr) {
    const int shown = std::min<int>(record.dimensions, OperationRecord::kMostSizes);
    absl::StrAppend(&text, " ", record.dtype, "[", absl::StrJoin(record.sizes, record.sizes + shown, ", "));
    if (record.dimensions > shown) {
      absl::StrAppend(&text, ", ...: ", static_cast<int>(record.dimensions), " dimensions, ", record.elements,
                      " elements");
    }
    if (record.shape_hash != 0) absl::StrAppend(&text, "; shape ", absl::Hex(record.shape_hash));
    absl::StrAppend(&text, "]");
  }
  if (record.reduction >= 0) {
    absl::StrAppend(&text, " ",
                    record.multiplies ? "premul_sum" : to_string(static_cast<ReduceOp>(record.reduction)));
  }
  if (record.peer >= 0) absl::StrAppend(&text, " root ", record.peer);
  return text;
}

// An all-gather of texts runs before the collective itself. All ranks get all texts, compare them in the same
// way, and so return the same verdict: no rank begins a collective that another rank refuses. The all-gather
// itself has the same form on all ranks, whatever they called.
absl::Status check_consistency(RunContext& run, const OperationRecord& record, uint64_t sequence,
                               c10::Device device) {
  const c10::NoGradGuard no_grad;
  if (run.staged.contains(device.type())) device = c10::Device(at::kCPU);
  const std::string text = absl::StrCat("#", sequence, " ", describe(record)).substr(0, kMostText);
  at::Tensor own = at::empty({kRecordBytes}, at::kByte);
  std::memset(own.mutable_data_ptr(), 0, kRecordBytes);
  std::memcpy(own.mutable_data_ptr(), text.data(), text.size());
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < run.size; ++rank)
    all.push_back(at::empty({kRecordBytes}, own.options().device(device)));
  GRADWIRE_RETURN_IF_ERROR(
      with_context(operations::all_gather(run, own.to(device), all), "comparing the ranks' calls"));
  if (run.enqueued != nullptr) run.enqueued->order_current_stream();
  run.enqueued = nullptr;
  const std::string first = text_in(all[0].cpu());
  for (int rank = 1; rank < run.size; ++rank) {
    const std::string other = text_in(all[rank].cpu());
    if (other == first) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the ranks' calls differ: rank ", rank, " called ", other, ", rank 0 called ", first));
  }
  return absl::OkStatus();
}

std::shared_ptr<GroupBackend> OperationRunner::backend() const {
  if (!mark_.here()) return nullptr;
  MutexLock lock(mutex_);
  return backend_;
}

absl::Status OperationRunner::check_peer(const at::Tensor& tensor, int peer) const {
  const std::shared_ptr<GroupBackend> open = backend();
  return open != nullptr ? open->check_peer(tensor.device(), peer) : closed_error();
}

absl::Status OperationRunner::check_process() const {
  return mark_.check([this] { return absl::StrCat("the process group \"", identity_->name, "\""); });
}

absl::Status OperationRunner::closed_error() const {
  GRADWIRE_RETURN_IF_ERROR(check_process());
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
