#include "gradwire/autograd/pass/context.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/pass/engine.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/core/call_context.h"

namespace gradwire::autograd {
namespace {

// Limit for the wait of a new context for a running optimizer step. A context that is opened on a worker with
// an optimizer of Consistency::kWait belongs to a trainer that owns parameters, so it must pass the step
// barrier.
constexpr absl::Duration kAdmissionTimeout = absl::Seconds(60);

// Waits until the step barrier of this worker admits the context. The context then counts as admitted
// everywhere, so its later requests do not wait for steps on other workers. Throws the error of the barrier.
void admit_locally(Engine& engine, const rpc::Id& id) {
  absl::Time deadline = Clock::system().now() + kAdmissionTimeout;
  if (auto call = rpc::CallContext::current()) {
    deadline = std::min(deadline, call->deadline().on_system_clock());
  }
  Promise<void> promise;
  engine.barrier().request(id, false, deadline, [promise](absl::Status status) {
    if (status.ok()) {
      promise.set_value();
    } else {
      promise.set_error(std::move(status));
    }
  });
  promise.future().wait();
  if (auto context = engine.contexts().find(id); context.ok()) {
    engine.planter().admitted(*context, 0);
  }
}

}  // namespace

Context::Context() : Context(rpc::Agent::current()) {}

Context::Context(const std::shared_ptr<rpc::Agent>& agent) : agent_(agent) {
  if (agent == nullptr)
    throw Error(absl::FailedPreconditionError(
        "cannot open an autograd context: got no agent; call init_rpc() or pass an agent"));
  Engine& engine = *value_or_throw(Engine::of(*agent));
  const std::shared_ptr<ContextState> state = engine.contexts().open();
  const rpc::Id id = state->id;
  absl::Status status;
  if (const auto current = current_context(); current != nullptr) {
    status = absl::FailedPreconditionError(
        absl::StrCat("cannot open the autograd context ", rpc::to_string(id), ": the context ",
                     rpc::to_string(current->id), " is current, and a thread can have only one"));
  } else if (engine.barrier().armed()) {
    try {
      admit_locally(engine, id);
    } catch (const Error& error) {
      status = error.status();
    }
  }
  // A constructor that throws runs no destructor, so the context must be released here.
  if (!status.ok()) {
    engine.contexts().release(id);
    throw Error(status);
  }
  active_ = state->active;
  ActiveContextSlot::set(active_);
}

Context::~Context() {
  // The order matters: the context ends here first, so that no call of this process can still enter it while
  // its release is on the way to other workers.
  // Outer frames and other threads may put the context back into their slots. ended() must be true there.
  active_->end();
  if (const auto& current = ActiveContextSlot::get(); current != nullptr && current->id == active_->id) {
    ActiveContextSlot::set(nullptr);
  }
  if (std::shared_ptr<rpc::Agent> agent = agent_.lock()) {
    if (auto engine = Engine::of(*agent); engine.ok()) (*engine)->contexts().release(active_->id);
  }
}

int64_t Context::id() const { return public_id(active_->id); }
rpc::Id Context::full_id() const { return active_->id; }

ContextGuard::ContextGuard(const Context& context) : previous_(current_context()) {
  if (previous_ != nullptr && previous_->id != context.active_->id) {
    throw Error(absl::FailedPreconditionError(
        absl::StrCat("cannot enter the autograd context ", rpc::to_string(context.active_->id),
                     ": the context ", rpc::to_string(previous_->id), " is current on this thread")));
  }
  ActiveContextSlot::set(context.active_);
}

ContextGuard::~ContextGuard() { ActiveContextSlot::set(std::move(previous_)); }

std::optional<int64_t> current_context_id() {
  const auto current = current_context();
  if (current == nullptr) return std::nullopt;
  return public_id(current->id);
}

ContextRef::ContextRef(const Context& context) : agent_(context.agent_.lock()), id_(context.full_id()) {}

std::shared_ptr<rpc::Agent> ContextRef::agent() const {
  return agent_ != nullptr ? agent_ : rpc::Agent::current();
}

}  // namespace gradwire::autograd
