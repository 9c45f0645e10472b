#pragma once

// How an operation gets its turn, and runs.

#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/collectives/flight/coarse_clock.h"
#include "gradwire/collectives/group/process_group_impl.h"

namespace gradwire::collectives {

template <class Run>
absl::Status ProcessGroupImpl::run_in_turn(const OperationRecord& record, uint64_t ticket, uint64_t entry,
                                           c10::Device device, Run& run, CoarseTime now,
                                           std::unique_ptr<Enqueued>& enqueued) {
  absl::Status status;
  if (closed_) [[unlikely]] {
    status = closed_error();
  } else {
    RunContext context{*backend_, deadline(now), stage_to_host_, identity_->rank, checks_.size(), nullptr};
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
  return identity_->end(record, ticket, entry, std::move(status));
}

template <class Run>
ProcessGroup::WorkPtr ProcessGroupImpl::perform(Mode mode, const OperationRecord& record, c10::Device device,
                                                Run run) {
  // The caller's current stream is what an operation on a device is ordered by.
  if (mode == Mode::kLater && device.is_cpu()) return perform_later(record, device, std::move(run));
  // On a thread of a pool another takes its place meanwhile.
  const BlockingScope blocking;
  throw_if_error(blocking.status());
  const uint64_t ticket = turnstile_.take();
  CoarseTime now = coarse_now();
  const uint64_t entry = identity_->recorder.begin(record, ticket, FlightRecorder::State::kRunning, now);
  if (turnstile_.wait(ticket)) now = coarse_now();
  std::unique_ptr<Enqueued> enqueued;
  absl::Status status = run_in_turn(record, ticket, entry, device, run, now, enqueued);
  turnstile_.leave(ticket);
  if (mode == Mode::kNow) {
    throw_if_error(status);
    if (enqueued != nullptr) enqueued->order_current_stream();
    return nullptr;
  }
  return std::make_shared<Work>(status.ok() ? Future<int>(-1) : Future<int>(std::move(status)),
                                std::move(enqueued));
}

template <class Run>
ProcessGroup::WorkPtr ProcessGroupImpl::perform_later(const OperationRecord& record, c10::Device device,
                                                      Run run) {
  Promise<int> promise;
  auto work = std::make_shared<Work>(promise.future());
  // The operation goes on when its Work and the group's handle are dropped.
  auto task = [self = std::static_pointer_cast<ProcessGroupImpl>(shared_from_this()), record, device,
               promise = std::move(promise),
               run = std::optional<Run>(std::move(run))](uint64_t ticket, uint64_t entry) mutable {
    self->turnstile_.wait(ticket);
    const CoarseTime now = coarse_now();
    self->identity_->recorder.set_state(entry, FlightRecorder::State::kRunning, now);
    std::unique_ptr<Enqueued> enqueued;
    absl::Status status = self->run_in_turn(record, ticket, entry, device, *run, now, enqueued);
    self->turnstile_.leave(ticket);
    // What it held of the caller's tensors is the caller's again before he hears of the end.
    run.reset();
    promise.set_result(status.ok() ? absl::StatusOr<int>(-1) : absl::StatusOr<int>(std::move(status)));
  };
  const auto note = [&](uint64_t ticket) {
    return identity_->recorder.begin(record, ticket, FlightRecorder::State::kQueued, coarse_now());
  };
  if (!async_.push(turnstile_, std::move(task), note)) throw Error(closed_error());
  return work;
}

}  // namespace gradwire::collectives
