#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/autograd/context/step_barrier.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/codec/id.h"

namespace gradwire::autograd {

// StepBarrier with those who wait at it: keeps their continuations and their deadlines. Thread-safe.
// Continuations run on whatever thread let them pass, without locks held; they must be quick. Each runs
// exactly once. Owned by shared_ptr.
class StepBarrierDriver : public std::enable_shared_from_this<StepBarrierDriver> {
 public:
  using Proceed = absl::AnyInvocable<void(absl::Status)>;

  // `timers` is asked when the first one has to wait: an agent has none yet when its extensions are made. The
  // queue that it returns outlives the barrier.
  explicit StepBarrierDriver(std::function<TimerQueue&()> timers) : timers_(std::move(timers)) {}
  ~StepBarrierDriver();

  void arm();
  void disarm();
  bool armed() const;

  // `proceed` gets OK, DeadlineExceeded, or what shutdown() or released() says.
  void request(const rpc::Id& context, bool admitted, absl::Time deadline, Proceed proceed);
  // After OK step_ended() must follow, with the same `parameters`.
  void step(const rpc::Id& context, const StepBarrier::Parameters& parameters, absl::Time deadline,
            Proceed proceed);
  void step_ended(const StepBarrier::Parameters& parameters);

  void admitted(const rpc::Id& context);
  // A pass of the context has ended here.
  void backward_ended(const rpc::Id& context);
  // The context was released; what waits in its name ends with NotFound.
  void released(const rpc::Id& context);
  void shutdown(const absl::Status& reason);

  std::size_t forwarding() const;
  // The contexts that still need their backward here, for messages.
  std::vector<rpc::Id> forwarding_contexts() const;

 private:
  struct Waiter {
    Proceed proceed;
    rpc::Id context;
    uint64_t timer = 0;
    absl::Time deadline;
    bool is_step = false;
  };
  using Waiters = std::vector<Waiter>;

  // `stepped`: nullptr for a request.
  void enter(const rpc::Id& context, const StepBarrier::Parameters& stepped, bool admitted,
             absl::Time deadline, Proceed proceed);
  void give_up(uint64_t ticket);
  Waiters take_locked(const StepBarrier::Tickets& tickets) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void run(Waiters waiters, const absl::Status& status);

  const std::function<TimerQueue&()> timers_;

  mutable Mutex mutex_;
  StepBarrier barrier_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::autograd
