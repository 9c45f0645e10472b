#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/autograd/context/step_barrier.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/codec/id.h"

namespace gradwire::autograd {

// A StepBarrier together with the continuations and deadlines of its waiters. Thread-safe. A continuation
// runs exactly once, without locks held, on the thread whose call let the waiter pass; it must be quick.
// Owned by shared_ptr.
class StepBarrierDriver : public std::enable_shared_from_this<StepBarrierDriver> {
 public:
  using Proceed = absl::AnyInvocable<void(absl::Status)>;

  // `timers` is first called when a waiter has to wait, because an agent has no timer queue yet when its
  // extensions are constructed. The queue that it returns must outlive this object.
  explicit StepBarrierDriver(std::function<TimerQueue&()> timers) : timers_(std::move(timers)) {}
  ~StepBarrierDriver();

  void arm();
  void disarm();
  bool armed() const;

  // Calls `proceed` with OK when the request may run, with DeadlineExceeded, or with the error of give_up(),
  // shutdown() or released(). Returns its ticket; 0 if `proceed` was called at once.
  uint64_t request(const rpc::Id& context, bool admitted, absl::Time deadline, Proceed proceed);
  // Same for a step. If `proceed` gets OK, step_ended() must follow with the same `parameters`.
  void step(const rpc::Id& context, const StepBarrier::Parameters& parameters, absl::Time deadline,
            Proceed proceed);
  void step_ended(const StepBarrier::Parameters& parameters);
  // The waiter of this ticket gets `reason`, unless it has passed.
  void give_up(uint64_t ticket, const absl::Status& reason);

  // Records that the context was admitted on another worker.
  void admitted(const rpc::Id& context);
  // Records that a pass of the context has ended here.
  void backward_ended(const rpc::Id& context);
  // Records that the context was released. Its waiters get NotFound.
  void released(const rpc::Id& context);
  // All waiters, and all later requests and steps, get `reason`.
  void shutdown(const absl::Status& reason);

  std::size_t forwarding() const;
  // Returns the number of requests and steps that wait.
  std::size_t waiting() const;
  // Returns the contexts that still need their backward here, for error messages.
  std::vector<rpc::Id> forwarding_contexts() const;

 private:
  struct Waiter {
    Proceed proceed;
    rpc::Id context;
    uint64_t timer = 0;
  };
  using Waiters = std::vector<Waiter>;

  // `stepped`: the parameters of a step; nullptr for a request.
  uint64_t enter(const rpc::Id& context, const StepBarrier::Parameters& stepped, bool admitted,
                 absl::Time deadline, Proceed proceed);
  Waiters take_locked(const StepBarrier::Tickets& tickets) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void run(Waiters waiters, const absl::Status& status);

  const std::function<TimerQueue&()> timers_;

  mutable Mutex mutex_;
  StepBarrier barrier_ ABSL_GUARDED_BY(mutex_);
  HashMap<uint64_t, Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::autograd
