#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/collectives/flight/coarse_clock.h"
#include "gradwire/collectives/flight/operation.h"
#include "gradwire/collectives/group/group_identity.h"
#include "gradwire/collectives/group_backend.h"
#include "gradwire/collectives/operations/operations.h"
#include "gradwire/collectives/queue/async_queue.h"
#include "gradwire/collectives/queue/ticket_lock.h"
#include "gradwire/collectives/streams/stream_point.h"
#include "gradwire/collectives/work.h"

namespace gradwire::collectives {

// Describes the parts of a call that must be equal on all ranks, for example "all_reduce Float[4, 4] sum".
std::string describe(const OperationRecord& record);

// Compares the ranks' next calls, by an all_gather of small tensors on `device`. Errors: InvalidArgument, on
// all ranks, if the calls differ; the message names the rank that differs from rank 0, and both calls.
absl::Status check_consistency(RunContext& run, const OperationRecord& record, uint64_t sequence,
                               c10::Device device);

// Runs the collectives of a group's member, one at a time, in the order of the calls. The caller of a
// synchronous operation runs it itself. An asynchronous operation runs on the runner's thread; an
// asynchronous operation that a backend enqueues on a device is enqueued there by its caller.
//
// Thread-safe. Owns the backend. Only the operation whose turn it is uses the backend, and point-to-point
// operations while they begin. Lives in a shared_ptr: operations that wait for their turn keep the runner
// alive.
class OperationRunner : public std::enable_shared_from_this<OperationRunner> {
 public:
  enum class Mode { kNow, kLater };
  struct Options {
    int size = 1;
    absl::Duration timeout;
    StagedDevices staged;
    bool check_consistency = false;
  };

  OperationRunner(std::shared_ptr<GroupIdentity> identity, const Options& options,
                  std::shared_ptr<GroupBackend> backend)
      : identity_(std::move(identity)), options_(options), backend_(std::move(backend)) {}
  // No operation is queued or running here: each of them would keep the runner alive.
  ~OperationRunner() { async_.close(); }

  // Runs `run`, which is callable as absl::Status(RunContext&), in its turn. `device`: the device of the
  // tensors. kNow: returns nullptr after it has run; throws its Error. kLater: returns its Work at once, or,
  // for tensors on a device, after `run` has enqueued the operation.
  template <class Run>
  std::shared_ptr<Work> perform(Mode mode, const OperationRecord& record, c10::Device device, Run run);

  const std::shared_ptr<GroupIdentity>& identity() const { return identity_; }
  // The backend, for point-to-point operations, which do not wait for a turn; nullptr after close() and in a
  // forked child.
  std::shared_ptr<GroupBackend> backend() const;
  // FailedPrecondition in a forked child of the process of this runner.
  absl::Status check_process() const;
  // The devices whose tensors the backend cannot use.
  const StagedDevices& staged() const { return options_.staged; }
  // The context of an operation that begins at `now`.
  RunContext context(GroupBackend& backend, CoarseTime now) const {
    return {backend, deadline(now), options_.staged, identity_->rank, options_.size, nullptr};
  }
  // As GroupBackend::check_peer, for the device of the tensor; FailedPrecondition after close().
  absl::Status check_peer(const at::Tensor& tensor, int peer) const;
  // The error of operations that are called after close(), or in a forked child.
  absl::Status closed_error() const;
  // Aborted with the reason of abort(); OK if abort() was not called.
  absl::Status interruption() const;

  // Ends the running operation and all later ones with Aborted. If it is called again, the first reason
  // stays.
  void abort(const std::string& reason);
  // Whether the calling thread is the runner's thread.
  bool on_thread() const { return async_.on_thread(); }
  // Waits, for at most the timeout of an operation, until the operations that were called have ended; aborts
  // those that remain, and destroys the backend. Idempotent. Must not be called on the runner's thread.
  void close();

 private:
  template <class Run>
  std::shared_ptr<Work> perform_later(const OperationRecord& record, c10::Device device, Run run);
  template <class Run>
  absl::Status run_in_turn(const OperationRecord& record, uint64_t ticket, uint64_t entry, c10::Device device,
                           Run& run, CoarseTime now, std::unique_ptr<Enqueued>& enqueued);
  absl::Status compare_with_others(RunContext& run, const OperationRecord& record, uint64_t sequence,
                                   c10::Device device) const;
  absl::Time deadline(CoarseTime now) const { return to_time(now + kCoarseClockLag) + options_.timeout; }

  const std::shared_ptr<GroupIdentity> identity_;
  const Options options_;
  const ProcessMark mark_;

  TicketLock ticket_lock_;
  // Read and written only by the operation whose turn it is.
  bool closed_ = false;
  // Written by the operation whose turn it is, with mutex_ held; so either of the two is enough for reading.
  std::shared_ptr<GroupBackend> backend_;

  mutable Mutex mutex_;
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
  Mutex close_mutex_;
  bool close_called_ ABSL_GUARDED_BY(close_mutex_) = false;

  AsyncQueue async_;
};

template <class Run>
absl::Status OperationRunner::run_in_turn(const OperationRecord& record, uint64_t ticket, uint64_t entry,
                                          c10::Device device, Run& run, CoarseTime now,
                                          std::unique_ptr<Enqueued>& enqueued) {
  absl::Status status;
  if (closed_) [[unlikely]] {
    status = closed_error();
  } else {
    RunContext context = this->context(*backend_, now);
    try {
      if (options_.check_consistency) [[unlikely]] {
        status = compare_with_others(context, record, ticket, device);
      }
      if (status.ok()) status = run(context);
    } catch (...) {
      status = status_from_exception(std::current_exception());
    }
    enqueued = std::move(context.enqueued);
  }
  return identity_->end(record, ticket, entry, now, std::move(status));
}

template <class Run>
std::shared_ptr<Work> OperationRunner::perform(Mode mode, const OperationRecord& record, c10::Device device,
                                               Run run) {
  throw_if_error(check_process());
  // A backend enqueues an operation on a device behind the caller's current stream, so the caller itself must
  // run it.
  if (mode == Mode::kLater && (device.is_cpu() || options_.staged.contains(device.type())))
    return perform_later(record, device, std::move(run));
  // If this is a thread of a pool, the pool starts another thread while this one may block.
  const BlockingScope blocking;
  throw_if_error(blocking.status());
  CoarseTime now = coarse_now();
  std::unique_ptr<Enqueued> enqueued;
  absl::Status status;
  {
    TicketTurn turn(ticket_lock_);
    const uint64_t entry =
        identity_->recorder.begin(record, turn.ticket(), FlightRecorder::State::kRunning, now);
    if (turn.wait()) now = coarse_now();
    status = run_in_turn(record, turn.ticket(), entry, device, run, now, enqueued);
  }
  if (mode == Mode::kNow) {
    throw_if_error(status);
    if (enqueued != nullptr) enqueued->order_current_stream();
    return nullptr;
  }
  return std::make_shared<Work>(status.ok() ? Future<int>(-1) : Future<int>(std::move(status)),
                                std::move(enqueued));
}

template <class Run>
std::shared_ptr<Work> OperationRunner::perform_later(const OperationRecord& record, c10::Device device,
                                                     Run run) {
  Promise<int> promise;
  // Tensors of an accelerator are copied to the host and back in a stream of their own, behind the caller's
  // work.
  const std::shared_ptr<EnqueuedPoint> copied = device.is_cpu() ? nullptr : std::make_shared<EnqueuedPoint>();
  auto work = std::make_shared<Work>(promise.future(), copied);
  // The task keeps the runner alive: the operation continues if its Work and the group's handle are dropped.
  auto task = [self = shared_from_this(), record, device, promise = std::move(promise), copied,
               called = StreamPoint::of_current(device),
               run = std::optional<Run>(std::move(run))](uint64_t ticket, uint64_t entry) mutable {
    std::optional<TicketTurn> turn(std::in_place, self->ticket_lock_, ticket);
    turn->wait();
    const CoarseTime now = coarse_now();
    self->identity_->recorder.set_state(entry, FlightRecorder::State::kRunning, now);
    std::unique_ptr<Enqueued> enqueued;
    const auto behind_caller = [&](RunContext& context) {
      const SideStream side(device);
      called.block_current();
      absl::Status result = (*run)(context);
      if (copied != nullptr) copied->set(StreamPoint::of_current(device));
      return result;
    };
    absl::Status status = self->run_in_turn(record, ticket, entry, device, behind_caller, now, enqueued);
    turn.reset();
    // Release the caller's tensors before the promise reports the end of the operation.
    run.reset();
    promise.set_result(status.ok() ? absl::StatusOr<int>(-1) : absl::StatusOr<int>(std::move(status)));
  };
  const auto record_queued = [&](uint64_t ticket) {
    return identity_->recorder.begin(record, ticket, FlightRecorder::State::kQueued, coarse_now());
  };
  const absl::Status queued = async_.push(ticket_lock_, std::move(task), record_queued);
  throw_if_error(absl::IsFailedPrecondition(queued) ? closed_error() : queued);
  return work;
}

}  // namespace gradwire::collectives
