#include "gradwire/autograd/context.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/autograd/context/active_context.h"
#include "gradwire/autograd/pass/engine.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/future.h"
#include "gradwire/rpc/agent.h"
#include "gradwire/rpc/call_context.h"

namespace gradwire::autograd {
namespace {

// A context opened where optimizers wait is a trainer with parameters of its own: it waits for a running
// step, at most this long.
constexpr absl::Duration kAdmissionTimeout = absl::Seconds(60);

void admit_locally(Engine& engine, const rpc::Id& id) {
  absl::Time deadline = Clock::system().now() + kAdmissionTimeout;
  if (auto call = rpc::CallContext::current()) deadline = std::min(deadline, call->deadline());
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
    throw Error(absl::FailedPreconditionError("an autograd context needs an agent, got nullptr"));
  Engine& engine = *value_or_throw(Engine::of(*agent));
  const std::shared_ptr<ContextState> state = engine.contexts().open();
  const rpc::Id id = state->id;
  absl::Status status;
  if (const auto current = current_context(); current != nullptr) {
    status = absl::FailedPreconditionError(
        absl::StrCat("the autograd context ", rpc::to_string(id), " was opened where the context ",
                     rpc::to_string(current->id), " is current: there can be one per step and thread"));
  } else if (engine.barrier().armed()) {
    try {
      admit_locally(engine, id);
    } catch (const Error& error) {
      status = error.status();
    }
  }
  if (!status.ok()) {
    engine.contexts().release(id);
    throw Error(status);
  }
  active_ = state->active;
  ActiveContextSlot::set(active_);
}

Context::~Context() {
  // Outer frames and other threads may put the context back into their slots, where it must read as ended.
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
        absl::StrCat("the autograd context ", rpc::to_string(context.active_->id),
                     " was entered where the context ", rpc::to_string(previous_->id), " is current")));
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
