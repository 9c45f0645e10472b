#include "gradwire/autograd/context/step_barrier_driver.h"

#include "absl/strings/str_cat.h"

namespace gradwire::autograd {

StepBarrierDriver::~StepBarrierDriver() { shutdown(absl::CancelledError("the agent was destroyed")); }

void StepBarrierDriver::arm() {
  MutexLock lock(mutex_);
  barrier_.arm();
}

void StepBarrierDriver::disarm() {
  Waiters waiters;
  {
    MutexLock lock(mutex_);
    waiters = take_locked(barrier_.disarm());
  }
  run(std::move(waiters), absl::OkStatus());
}

bool StepBarrierDriver::armed() const {
  MutexLock lock(mutex_);
  return barrier_.armed();
}

std::size_t StepBarrierDriver::forwarding() const {
  MutexLock lock(mutex_);
  return barrier_.forwarding();
}

std::size_t StepBarrierDriver::waiting() const {
  MutexLock lock(mutex_);
  return waiters_.size();
}

std::vector<rpc::Id> StepBarrierDriver::forwarding_contexts() const {
  MutexLock lock(mutex_);
  const auto& contexts = barrier_.forwarding_contexts();
  return {contexts.begin(), contexts.end()};
}

uint64_t StepBarrierDriver::request(const rpc::Id& context, bool admitted, absl::Time deadline,
                                    Proceed proceed) {
  return enter(context, nullptr, admitted, deadline, std::move(proceed));
}

void StepBarrierDriver::step(const rpc::Id& context, const StepBarrier::Parameters& parameters,
                             absl::Time deadline, Proceed proceed) {
  enter(context, parameters, false, deadline, std::move(proceed));
}

// The waiter may pass, give up or be released on another thread at any moment after step 1. Steps:
// 1. With the lock: store the continuation, then ask the barrier, which may let the waiter pass at once.
// 2. Without the lock: run the continuations of all waiters that have passed.
// 3. Schedule the deadline, without the lock: the timer's thread takes it in give_up().
// 4. Store the timer with the waiter, so that the continuation cancels it. If the waiter has passed between
//    1 and 4, no other thread knows the timer, so it is cancelled here.
uint64_t StepBarrierDriver::enter(const rpc::Id& context, const StepBarrier::Parameters& stepped,
                                  bool admitted, absl::Time deadline, Proceed proceed) {
  const bool is_step = stepped != nullptr;
  Waiters passed;
  absl::Status stopped;
  uint64_t ticket = 0;
  bool waits = false;
  {
    MutexLock lock(mutex_);
    stopped = stopped_;
    if (stopped.ok()) {
      ticket = next_ticket_++;
      waiters_.emplace(ticket, Waiter{std::move(proceed), context});
      passed = take_locked(is_step ? barrier_.step(ticket, context, stepped)
                                   : barrier_.request(ticket, context, admitted));
      waits = waiters_.contains(ticket);
    }
  }
  if (!stopped.ok()) {
    proceed(stopped);
    return 0;
  }
  run(std::move(passed), absl::OkStatus());
  if (!waits) return 0;
  if (deadline == absl::InfiniteFuture()) return ticket;
  const uint64_t timer = timers_().schedule(deadline, [weak = weak_from_this(), ticket, context, is_step] {
    const std::shared_ptr<StepBarrierDriver> self = weak.lock();
    if (self == nullptr) return;
    self->give_up(ticket, absl::DeadlineExceededError(absl::StrCat(
                              is_step ? "an optimizer step of the autograd context "
                                      : "a call in the autograd context ",
                              rpc::to_string(context),
                              is_step ? " timed out while it waited for the backward of other contexts that "
                                        "use the same parameters"
                                      : " timed out while it waited for an optimizer step on this worker's "
                                        "parameters")));
  });
  MutexLock lock(mutex_);
  auto found = waiters_.find(ticket);
  if (found != waiters_.end()) {
    found->second.timer = timer;
  } else {
    timers_().cancel(timer);
  }
  return ticket;
}

void StepBarrierDriver::give_up(uint64_t ticket, const absl::Status& reason) {
  Waiters ended;
  Waiters passed;
  {
    MutexLock lock(mutex_);
    StepBarrier::Tickets tickets;
    if (!barrier_.give_up(ticket, tickets)) return;
    ended = take_locked({ticket});
    passed = take_locked(tickets);
  }
  run(std::move(ended), reason);
  run(std::move(passed), absl::OkStatus());
}

void StepBarrierDriver::step_ended(const StepBarrier::Parameters& parameters) {
  Waiters waiters;
  {
    MutexLock lock(mutex_);
    waiters = take_locked(barrier_.step_ended(parameters));
  }
  run(std::move(waiters), absl::OkStatus());
}

void StepBarrierDriver::admitted(const rpc::Id& context) {
  Waiters waiters;
  {
    MutexLock lock(mutex_);
    waiters = take_locked(barrier_.admitted(context));
  }
  run(std::move(waiters), absl::OkStatus());
}

void StepBarrierDriver::backward_ended(const rpc::Id& context) {
  Waiters waiters;
  {
    MutexLock lock(mutex_);
    waiters = take_locked(barrier_.left(context));
  }
  run(std::move(waiters), absl::OkStatus());
}

// 1. Remove the waiters of the context, which end with NotFound. A waiter that gives up may let others pass,
//    among them later ones of the same context; these proceed, and their user finds that the context is
//    gone.
// 2. The context is not forwarding any more, which may let steps of other contexts pass.
// 3. Run all continuations, without the lock.
void StepBarrierDriver::released(const rpc::Id& context) {
  Waiters dropped;
  Waiters passed;
  {
    MutexLock lock(mutex_);
    std::vector<uint64_t> own;
    for (const auto& [ticket, waiter] : waiters_) {
      if (waiter.context == context) own.push_back(ticket);
    }
    StepBarrier::Tickets tickets;
    for (uint64_t ticket : own) {
      StepBarrier::Tickets more;
      if (!barrier_.give_up(ticket, more)) continue;
      tickets.insert(tickets.end(), more.begin(), more.end());
      for (Waiter& waiter : take_locked({ticket})) dropped.push_back(std::move(waiter));
    }
    passed = take_locked(tickets);
    for (Waiter& waiter : take_locked(barrier_.left(context))) passed.push_back(std::move(waiter));
  }
  run(std::move(dropped),
      absl::NotFoundError(absl::StrCat("the autograd context ", rpc::to_string(context), " was released")));
  run(std::move(passed), absl::OkStatus());
}

// The barrier keeps its queue. A ticket that passes later has no waiter any more, and take_locked() skips
// it.
void StepBarrierDriver::shutdown(const absl::Status& reason) {
  Waiters waiters;
  {
    MutexLock lock(mutex_);
    if (stopped_.ok()) stopped_ = reason;
    for (auto& [ticket, waiter] : waiters_) waiters.push_back(std::move(waiter));
    waiters_.clear();
  }
  run(std::move(waiters), reason);
}

StepBarrierDriver::Waiters StepBarrierDriver::take_locked(const StepBarrier::Tickets& tickets) {
  Waiters waiters;
  for (uint64_t ticket : tickets) {
    auto found = waiters_.find(ticket);
    if (found == waiters_.end()) continue;
    waiters.push_back(std::move(found->second));
    waiters_.erase(found);
  }
  return waiters;
}

void StepBarrierDriver::run(Waiters waiters, const absl::Status& status) {
  for (Waiter& waiter : waiters) {
    if (waiter.timer != 0) timers_().cancel(waiter.timer);
    waiter.proceed(status);
  }
}

}  // namespace gradwire::autograd
