#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "gradwire/base/threads/execution_state.h"
#include "gradwire/codec/id.h"

namespace gradwire::rpc {
class Agent;
}

namespace gradwire::autograd {

class ActiveContext;

// The scope of one training step: what its calls send and get back joins one graph over all workers they
// reach, and backward() leaves the gradients of that graph in it. While it lives it is current on its thread,
// and with the work that the thread hands on (then, co_await, handlers of its calls); ContextGuard enters it
// elsewhere.
//
// When it dies, what any worker holds of it is released, and it is not current on any thread of its worker
// afterwards. One per step and thread: a context opened where one
// is current, in a handler that was called inside one too, throws Error, FailedPrecondition, naming both.
// id() is thread-safe, the rest belongs to one thread.
//
//   Context context;
//   auto loss = rpc_sync<&forward>("worker1", x).sum();
//   backward(context, {loss});
//   optimizer.step(context);
class Context {
 public:
  // A context of Agent::current(). Throws Error, FailedPrecondition, without an agent.
  Context();
  // A context of `agent`. Throws Error: FailedPrecondition for nullptr, or where a context is current; what
  // waiting for a running optimizer step ends with.
  explicit Context(const std::shared_ptr<rpc::Agent>& agent);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Unique over all workers, and known on every one that a call in the context has reached. Travels as an
  // argument.
  int64_t id() const;
  // For messages and logs.
  rpc::Id full_id() const;

 private:
  friend class ContextGuard;
  friend class ContextRef;

  std::weak_ptr<rpc::Agent> agent_;
  std::shared_ptr<ActiveContext> active_;
};

// Makes a context current for a scope, on any thread. Throws Error, FailedPrecondition, where another one is
// current.
class ContextGuard {
 public:
  // Enters `context`; the destructor enters what was current before.
  explicit ContextGuard(const Context& context);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  std::shared_ptr<const ActiveContext> previous_;
};

// The id of the context that the calling code runs in; also in a handler that a call in the context has
// reached.
std::optional<int64_t> current_context_id();

// How functions take a context: the object, or its id on any worker that it has reached.
class ContextRef {
 public:
  ContextRef(const Context& context);  // NOLINT: implicit by design, as the two below
  // A context of Agent::current(), by its id().
  ContextRef(int64_t id) : number_(id) {}
  // By Context::full_id(), on any worker that it has reached.
  ContextRef(const rpc::Id& id) : id_(id) {}

  // Throws Error, FailedPrecondition, without an agent.
  std::shared_ptr<rpc::Agent> agent() const;
  // The id() that was given; none when the object or its full id was.
  const std::optional<int64_t>& number() const { return number_; }
  // The full id; empty when only the number was given.
  const rpc::Id& id() const { return id_; }

 private:
  std::shared_ptr<rpc::Agent> agent_;
  std::optional<int64_t> number_;
  rpc::Id id_;
};

}  // namespace gradwire::autograd
