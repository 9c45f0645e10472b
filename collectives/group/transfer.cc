// Point-to-point operations. They do not wait for a turn: a rank may receive while a collective of the group
// is queued. A transfer has three parts: send() or receive() begins it, the backend ends it, and finish()
// copies the received data and completes the flight record. wait() and as_work() call finish(), once. A
// message that ends at once has only one part, try_send() or try_receive().

#include "gradwire/collectives/group/transfer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/device/streams.h"

namespace gradwire::collectives {
namespace {

OperationRecord record_transfer(Operation operation, const at::Tensor& tensor, int peer, int tag) {
  OperationRecord record = record_of(operation, tensor);
  record.peer = peer;
  record.tag = tag;
  return record;
}

std::shared_ptr<GroupBackend> backend_of(OperationRunner& runner) {
  std::shared_ptr<GroupBackend> backend = runner.backend();
  if (backend == nullptr) throw Error(runner.closed_error());
  return backend;
}

// Whether the backend can use the memory of the tensor itself, as in Staging.
bool uses_directly(const OperationRunner& runner, const at::Tensor& tensor) {
  return is_plain(tensor) && !runner.staged().contains(tensor.device().type());
}

// Records a message that has begun and ended. Returns its end as the caller gets it.
absl::Status record_end(GroupIdentity& identity, const OperationRecord& record, const absl::Status& status) {
  using State = FlightRecorder::State;
  const State state = status.ok() ? State::kDone : State::kRunning;
  const CoarseTime now = coarse_now();
  const uint64_t entry = identity.recorder.begin(record, FlightRecorder::kNoSequence, state, now);
  if (!status.ok()) return identity.end(record, FlightRecorder::kNoSequence, entry, now, status);
  // The message took less than a tick.
  identity.metrics.ended(record, 0, true);
  return status;
}

// The rank in the world of a sender, whose rank in the group is `source`.
absl::StatusOr<int> world_rank(const GroupIdentity& identity, int source) {
  if (source >= 0 && static_cast<std::size_t>(source) < identity.ranks.size())
    return identity.ranks[static_cast<std::size_t>(source)];
  return absl::InternalError(absl::StrCat("invalid source from the backend: got rank ", source,
                                          ", expected a rank below ", identity.ranks.size()));
}

}  // namespace

Transfer::Transfer(OperationRunner& runner, const OperationRecord& record, CoarseTime now)
    : record_(record),
      entry_(runner.identity()->recorder.begin(record, FlightRecorder::kNoSequence,
                                               FlightRecorder::State::kRunning, now)),
      began_(now),
      identity_(runner.identity()) {}

Transfer Transfer::send(OperationRunner& runner, at::Tensor tensor, int dst, int to, int tag) {
  const std::shared_ptr<GroupBackend> backend = backend_of(runner);
  const CoarseTime now = coarse_now();
  Transfer transfer(runner, record_transfer(Operation::kSend, tensor, dst, tag), now);
  RunContext run = runner.context(*backend, now);
  at::Tensor memory = Staging(run).source(tensor);
  const Future<void> sent = backend->send(std::move(memory), to, tag, run.deadline);
  // Asked on the thread that began the transfer, right after it began: the backend keeps the value by thread.
  transfer.enqueued_ = backend->take_enqueued();
  if (sent.done()) {
    absl::Status status = sent.result();
    transfer.result_ = status.ok() ? absl::StatusOr<int>(-1) : absl::StatusOr<int>(std::move(status));
    return transfer;
  }
  Promise<int> ended(sent.executor());
  transfer.ended_ = ended.future();
  sent.on_ready_inline([ended](const absl::Status& status) {
    ended.set_result(status.ok() ? absl::StatusOr<int>(-1) : absl::StatusOr<int>(status));
  });
  // The backend's future has no value; the Work needs a future of an int. So the result and a cancellation
  // are passed on.
  ended.on_cancel([sent] { sent.cancel(); });
  return transfer;
}

Transfer Transfer::receive(OperationRunner& runner, at::Tensor tensor, int src, int from, int tag) {
  const std::shared_ptr<GroupBackend> backend = backend_of(runner);
  const CoarseTime now = coarse_now();
  Transfer transfer(runner, record_transfer(Operation::kReceive, tensor, src, tag), now);
  RunContext run = runner.context(*backend, now);
  at::Tensor memory = Staging(run).target(tensor, /*keeps=*/false);
  // The data arrives in temporary memory. finish() copies it.
  if (!memory.is_same(tensor)) {
    transfer.called_ = StreamPoint::of_current(tensor.device());
    transfer.staged_ = memory;
    transfer.target_ = std::move(tensor);
  }
  transfer.ended_ = backend->receive(std::move(memory), from, tag, run.deadline);
  transfer.enqueued_ = backend->take_enqueued();
  return transfer;
}

std::optional<absl::Status> Transfer::try_send(OperationRunner& runner, const at::Tensor& tensor, int dst,
                                               int to, int tag) {
  if (!uses_directly(runner, tensor)) return std::nullopt;
  const std::optional<absl::Status> sent = backend_of(runner)->try_send(tensor, to, tag);
  if (!sent.has_value()) return std::nullopt;
  return record_end(*runner.identity(), record_transfer(Operation::kSend, tensor, dst, tag), *sent);
}

std::optional<int> Transfer::try_receive(OperationRunner& runner, const at::Tensor& tensor, int src, int from,
                                         int tag) {
  if (!uses_directly(runner, tensor)) return std::nullopt;
  const std::optional<absl::StatusOr<int>> received = backend_of(runner)->try_receive(tensor, from, tag);
  if (!received.has_value()) return std::nullopt;
  if (received->ok()) bump_version(tensor);
  throw_if_error(record_end(*runner.identity(), record_transfer(Operation::kReceive, tensor, src, tag),
                            received->status()));
  return value_or_throw(world_rank(*runner.identity(), **received));
}

absl::StatusOr<int> Transfer::finish(const absl::StatusOr<int>& result) const {
  absl::Status status = result.status();
  try {
    if (status.ok() && staged_.defined()) {
      called_.block_current();
      if (enqueued_ != nullptr) enqueued_->order_current_stream();
      copy_into(staged_, target_);
      if (!target_.is_cpu()) {
        const c10::Stream stream = device::current_stream(target_.device());
        for (const at::Tensor& used : {staged_, target_}) device::record_use(used, stream);
      }
    }
  } catch (...) {
    status = status_from_exception(std::current_exception());
  }
  GRADWIRE_RETURN_IF_ERROR(
      identity_->end(record_, FlightRecorder::kNoSequence, entry_, began_, std::move(status)));
  if (record_.operation == Operation::kSend) return -1;
  return world_rank(*identity_, *result);
}

absl::StatusOr<int> Transfer::finish_beside(const absl::StatusOr<int>& result, EnqueuedPoint& copy) const {
  try {
    const SideStream side(target_.device());
    absl::StatusOr<int> from = finish(result);
    copy.set(StreamPoint::of_current(target_.device()));
    return from;
  } catch (...) {
    return status_from_exception(std::current_exception());
  }
}

int Transfer::wait() const {
  const int from = value_or_throw(finish(result_.has_value() ? *result_ : ended_.result()));
  if (enqueued_ != nullptr) enqueued_->order_current_stream();
  return from;
}

std::shared_ptr<Work> Transfer::as_work() && {
  // All sends that ended at once share one future, so that no allocation is needed for each.
  static const auto* const sent = new Future<int>(-1);
  if (result_.has_value() || ended_.done()) {
    const absl::StatusOr<int> ended = result_.has_value() ? *result_ : ended_.result();
    if (on_device()) {
      // The message may still be under way on the device. A copy in the caller's stream would make everything
      // that the caller does next wait for the message, also the send that the other rank waits for.
      auto copy = std::make_shared<EnqueuedPoint>();
      absl::StatusOr<int> from = finish_beside(ended, *copy);
      return std::make_shared<Work>(Future<int>(std::move(from)), std::move(copy));
    }
    const absl::StatusOr<int> result = finish(ended);
    return std::make_shared<Work>(result.ok() && *result == -1 ? *sent : Future<int>(result),
                                  std::move(enqueued_));
  }
  // The continuation holds the Transfer. The future is moved out of the Transfer: otherwise the future would
  // own the continuation, which would own the future.
  auto transfer = std::make_shared<Transfer>(std::move(*this));
  const Future<int> ended = std::exchange(transfer->ended_, Future<int>());
  Promise<int> promise(ended.executor());
  // With staged memory, finish() needs the enqueued part, to copy after the data has arrived on the device.
  // It runs on another thread, so it copies in a stream of its own, and the Work orders streams behind that
  // copy.
  std::shared_ptr<EnqueuedPoint> copy;
  std::shared_ptr<Enqueued> enqueued;
  if (!transfer->staged_.defined()) {
    enqueued = std::move(transfer->enqueued_);
  } else if (transfer->on_device()) {
    enqueued = copy = std::make_shared<EnqueuedPoint>();
  }
  auto work = std::make_shared<Work>(promise.future(), std::move(enqueued));
  promise.on_cancel([ended] { ended.cancel(); });
  auto finish = [transfer, promise, copy](const absl::StatusOr<int>& result) {
    promise.set_result(copy == nullptr ? transfer->finish(result) : transfer->finish_beside(result, *copy));
  };
  // Copying can take long, and a transport's thread must not do it: on_ready runs `finish` on the executor.
  if (transfer->staged_.defined()) {
    ended.on_ready(std::move(finish));
  } else {
    ended.on_ready_inline(std::move(finish));
  }
  return work;
}

}  // namespace gradwire::collectives
