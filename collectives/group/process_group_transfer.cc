// Point to point.
#include <c10/core/GradMode.h>

#include <optional>
#include <utility>

#include "gradwire/collectives/group/process_group_run.h"

namespace gradwire::collectives {

// A message on its way.
struct ProcessGroupImpl::Transfer {
  OperationRecord record;
  uint64_t entry;
  // As the backend has it, a rank of the group; -1 of a send: when it ended at once, and else.
  std::optional<absl::StatusOr<int>> result;
  Future<int> ended;
  std::unique_ptr<Enqueued> enqueued;
  // Where a received tensor goes that was received elsewhere; else undefined.
  at::Tensor staged;
  at::Tensor target;
  std::shared_ptr<GroupIdentity> identity;

  absl::StatusOr<int> wait() const { return result.has_value() ? *result : ended.result(); }

  // The rank of the world, or the error with its names; brings the tensor where it belongs.
  absl::StatusOr<int> finish(const absl::StatusOr<int>& result) const {
    absl::Status status = result.status();
    try {
      if (status.ok() && staged.defined()) {
        if (enqueued != nullptr) enqueued->order_current_stream();
        copy_into(staged, target);
      }
    } catch (...) {
      status = status_from_exception(std::current_exception());
    }
    GRADWIRE_RETURN_IF_ERROR(identity->end(record, FlightRecorder::kNoSequence, entry, std::move(status)));
    if (record.operation == Operation::kSend) return -1;
    if (*result < 0 || static_cast<std::size_t>(*result) >= identity->ranks.size()) {
      return absl::InternalError("the backend names a source that is no rank of the group");
    }
    return identity->ranks[static_cast<std::size_t>(*result)];
  }
};

ProcessGroupImpl::Transfer ProcessGroupImpl::record_transfer(Operation operation, const at::Tensor& tensor,
                                                             int peer, int tag, CoarseTime now) {
  Transfer transfer;
  transfer.record = record_of(operation, tensor);
  transfer.record.peer = peer;
  transfer.record.tag = tag;
  transfer.identity = identity_;
  transfer.entry = identity_->recorder.begin(transfer.record, FlightRecorder::kNoSequence,
                                             FlightRecorder::State::kRunning, now);
  return transfer;
}

ProcessGroupImpl::Transfer ProcessGroupImpl::begin_send(at::Tensor tensor, int dst, int tag) {
  const int to = check_rank(Operation::kSend, dst, "dst");
  check(Operation::kSend, checks_.tag(tag));
  check(Operation::kSend, checks_.readable(tensor, "tensor"));
  const std::shared_ptr<GroupBackend> backend = backend_for_others();
  if (backend == nullptr) throw Error(closed_error());
  const CoarseTime now = coarse_now();
  Transfer transfer = record_transfer(Operation::kSend, tensor, dst, tag, now);
  RunContext run{*backend, deadline(now), stage_to_host_, rank(), size(), nullptr};
  at::Tensor memory = Staging(run).source(tensor);
  std::optional<absl::Status> at_once = backend->try_send(memory, to, tag);
  Future<void> sent;
  if (!at_once.has_value()) {
    sent = backend->send(std::move(memory), to, tag, run.deadline);
    if (sent.done()) at_once = sent.result();
  }
  transfer.enqueued = backend->take_enqueued();
  if (at_once.has_value()) {
    transfer.result = at_once->ok() ? absl::StatusOr<int>(-1) : *std::move(at_once);
    return transfer;
  }
  Promise<int> ended(sent.executor());
  transfer.ended = ended.future();
  sent.on_ready_inline([ended](const absl::Status& status) {
    ended.set_result(status.ok() ? absl::StatusOr<int>(-1) : absl::StatusOr<int>(status));
  });
  ended.on_cancel([sent] { sent.cancel(); });
  return transfer;
}

ProcessGroupImpl::Transfer ProcessGroupImpl::begin_receive(at::Tensor tensor, int src, int tag, bool waits) {
  const int from = src == kAnySource ? -1 : check_rank(Operation::kReceive, src, "src");
  check(Operation::kReceive, checks_.tag(tag));
  check(Operation::kReceive, checks_.writable(tensor, "tensor"));
  const std::shared_ptr<GroupBackend> backend = backend_for_others();
  if (backend == nullptr) throw Error(closed_error());
  const CoarseTime now = coarse_now();
  Transfer transfer = record_transfer(Operation::kReceive, tensor, src, tag, now);
  RunContext run{*backend, deadline(now), stage_to_host_, rank(), size(), nullptr};
  at::Tensor memory = Staging(run).target(tensor, /*keeps=*/false);
  if (!memory.is_same(tensor)) {
    transfer.staged = memory;
    transfer.target = std::move(tensor);
  }
  if (waits) transfer.result = backend->try_receive(memory, from, tag);
  if (!transfer.result.has_value())
    transfer.ended = backend->receive(std::move(memory), from, tag, run.deadline);
  transfer.enqueued = backend->take_enqueued();
  return transfer;
}

void ProcessGroupImpl::send(at::Tensor tensor, int dst, int tag) {
  const Transfer transfer = begin_send(std::move(tensor), dst, tag);
  throw_if_error(transfer.finish(transfer.wait()).status());
  if (transfer.enqueued != nullptr) transfer.enqueued->order_current_stream();
}

int ProcessGroupImpl::recv(at::Tensor tensor, int src, int tag) {
  const Transfer transfer = begin_receive(std::move(tensor), src, tag, /*waits=*/true);
  const int from = value_or_throw(transfer.finish(transfer.wait()));
  if (transfer.enqueued != nullptr) transfer.enqueued->order_current_stream();
  return from;
}

namespace {

// The Work of a transfer. Callbacks hold what they need, not the group: its end may complete them.
template <class Transfer>
ProcessGroup::WorkPtr work_of(Transfer begun) {
  // One for all messages that have left at once.
  static const auto* const sent = new Future<int>(-1);
  if (begun.result.has_value() || begun.ended.done()) {
    const absl::StatusOr<int> result = begun.finish(begun.wait());
    return std::make_shared<Work>(result.ok() && *result == -1 ? *sent : Future<int>(result),
                                  std::move(begun.enqueued));
  }
  auto transfer = std::make_shared<Transfer>(std::move(begun));
  const Future<int> ended = transfer->ended;
  transfer->ended = Future<int>();
  Promise<int> promise(ended.executor());
  std::shared_ptr<Enqueued> enqueued;
  if (!transfer->staged.defined()) enqueued = std::move(transfer->enqueued);
  auto work = std::make_shared<Work>(promise.future(), std::move(enqueued));
  promise.on_cancel([ended] { ended.cancel(); });
  auto finish = [transfer, promise](const absl::StatusOr<int>& result) {
    promise.set_result(transfer->finish(result));
  };
  // Copying is more than a transport's thread should be asked for.
  if (transfer->staged.defined()) {
    ended.on_ready(std::move(finish));
  } else {
    ended.on_ready_inline(std::move(finish));
  }
  return work;
}

}  // namespace

ProcessGroup::WorkPtr ProcessGroupImpl::isend(at::Tensor tensor, int dst, int tag) {
  return work_of(begin_send(std::move(tensor), dst, tag));
}

ProcessGroup::WorkPtr ProcessGroupImpl::irecv(at::Tensor tensor, int src, int tag) {
  return work_of(begin_receive(std::move(tensor), src, tag, /*waits=*/false));
}

}  // namespace gradwire::collectives
