#include "gradwire/autograd/context/gate.h"

#include "absl/strings/str_cat.h"

namespace gradwire::autograd {

Gate::~Gate() { shutdown(absl::CancelledError("the agent is gone")); }

void Gate::arm() {
  MutexLock lock(mutex_);
  gate_.arm();
}

void Gate::disarm() {
  Waiters waiters;
  {
    MutexLock lock(mutex_);
    waiters = take_locked(gate_.disarm());
  }
  run(std::move(waiters), absl::OkStatus());
}

bool Gate::armed() const {
  MutexLock lock(mutex_);
  return gate_.armed();
}

std::size_t Gate::forwarding() const {
  MutexLock lock(mutex_);
  return gate_.forwarding();
}

std::vector<rpc::Id> Gate::forwarding_contexts() const {
  MutexLock lock(mutex_);
  const auto& contexts = gate_.forwarding_contexts();
  return {contexts.begin(), contexts.end()};
}

void Gate::request(const rpc::Id& context, bool admitted, absl::Time deadline, Proceed proceed) {
  enter(context, nullptr, admitted, deadline, std::move(proceed));
}

void Gate::step(const rpc::Id& context, const StepGate::Parameters& parameters, absl::Time deadline,
                Proceed proceed) {
  enter(context, parameters, false, deadline, std::move(proceed));
}

void Gate::enter(const rpc::Id& context, const StepGate::Parameters& stepped, bool admitted,
                 absl::Time deadline, Proceed proceed) {
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
      waiters_.emplace(ticket, Waiter{std::move(proceed), context, 0, deadline, is_step});
      passed = take_locked(is_step ? gate_.step(ticket, context, stepped)
                                   : gate_.request(ticket, context, admitted));
      waits = waiters_.contains(ticket);
    }
  }
  if (!stopped.ok()) {
    proceed(stopped);
    return;
  }
  run(std::move(passed), absl::OkStatus());
  if (!waits || deadline == absl::InfiniteFuture()) return;
  const uint64_t timer = timers_().schedule(deadline, [weak = weak_from_this(), ticket] {
    if (std::shared_ptr<Gate> self = weak.lock()) self->give_up(ticket);
  });
  MutexLock lock(mutex_);
  auto found = waiters_.find(ticket);
  if (found != waiters_.end()) {
    found->second.timer = timer;
  } else {
    timers_().cancel(timer);
  }
}

void Gate::give_up(uint64_t ticket) {
  Waiters expired;
  Waiters passed;
  {
    MutexLock lock(mutex_);
    StepGate::Tickets tickets;
    if (!gate_.give_up(ticket, tickets)) return;
    expired = take_locked({ticket});
    passed = take_locked(tickets);
  }
  for (Waiter& waiter : expired) {
    waiter.proceed(absl::DeadlineExceededError(absl::StrCat(
        waiter.is_step ? "an optimizer step of the autograd context " : "a call in the autograd context ",
        rpc::to_string(waiter.context),
        waiter.is_step ? " waited in vain for the backward of other contexts that use the same parameters"
                       : " waited in vain for an optimizer step on the parameters here")));
  }
  run(std::move(passed), absl::OkStatus());
}

void Gate::step_ended(const StepGate::Parameters& parameters) {
  Waiters waiters;
  {
    MutexLock lock(mutex_);
    waiters = take_locked(gate_.step_ended(parameters));
  }
  run(std::move(waiters), absl::OkStatus());
}

void Gate::admitted(const rpc::Id& context) {
  Waiters waiters;
  {
    MutexLock lock(mutex_);
    waiters = take_locked(gate_.admitted(context));
  }
  run(std::move(waiters), absl::OkStatus());
}

void Gate::backward_ended(const rpc::Id& context) {
  Waiters waiters;
  {
    MutexLock lock(mutex_);
    waiters = take_locked(gate_.left(context));
  }
  run(std::move(waiters), absl::OkStatus());
}

void Gate::released(const rpc::Id& context) {
  Waiters dropped;
  Waiters passed;
  {
    MutexLock lock(mutex_);
    std::vector<uint64_t> own;
    for (const auto& [ticket, waiter] : waiters_) {
      if (waiter.context == context) own.push_back(ticket);
    }
    StepGate::Tickets tickets;
    for (uint64_t ticket : own) {
      StepGate::Tickets more;
      if (!gate_.give_up(ticket, more)) continue;
      tickets.insert(tickets.end(), more.begin(), more.end());
      for (Waiter& waiter : take_locked({ticket})) dropped.push_back(std::move(waiter));
    }
    passed = take_locked(tickets);
    for (Waiter& waiter : take_locked(gate_.left(context))) passed.push_back(std::move(waiter));
  }
  run(std::move(dropped),
      absl::NotFoundError(absl::StrCat("the autograd context ", rpc::to_string(context), " was released")));
  run(std::move(passed), absl::OkStatus());
}

void Gate::shutdown(const absl::Status& reason) {
  Waiters waiters;
  {
    MutexLock lock(mutex_);
    if (stopped_.ok()) stopped_ = reason;
    for (auto& [ticket, waiter] : waiters_) waiters.push_back(std::move(waiter));
    waiters_.clear();
  }
  run(std::move(waiters), reason);
}

Gate::Waiters Gate::take_locked(const StepGate::Tickets& tickets) {
  Waiters waiters;
  for (uint64_t ticket : tickets) {
    auto found = waiters_.find(ticket);
    if (found == waiters_.end()) continue;
    waiters.push_back(std::move(found->second));
    waiters_.erase(found);
  }
  return waiters;
}

void Gate::run(Waiters waiters, const absl::Status& status) {
  for (Waiter& waiter : waiters) {
    if (waiter.timer != 0) timers_().cancel(waiter.timer);
    waiter.proceed(status);
  }
}

}  // namespace gradwire::autograd
