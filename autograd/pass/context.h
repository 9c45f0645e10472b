#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "gradwire/base/threads/execution_state.h"
#include "gradwire/codec/id.h"

namespace gradwire::rpc {

class Agent;

}  // namespace gradwire::rpc

namespace gradwire::autograd {

class ActiveContext;

// The scope of one training step. The tensors that its calls send and receive join one graph over all workers
// that the calls reach, and backward() stores the gradients of that graph in the context.
//
// A context is current on its thread from construction to destruction, and in the work that the thread starts
// (then, co_await, handlers of its calls). ContextGuard enters it on other threads. Its destructor releases
// the state of the context on every worker; afterwards the context is not current on any thread of this
// worker.
//
// There is at most one per step and thread: opening a context where one is current, which includes a handler
// that was called inside one, throws Error, FailedPrecondition, and names both. id() is thread-safe; all else
// may be used by one thread only.
//
//   Context context;
//   auto loss = rpc_sync<&forward>("worker1", x).sum();
//   backward(context, {loss});
//   optimizer.step(context);
class Context {
 public:
  // Opens a context of Agent::current(). Throws Error, FailedPrecondition, without an agent.
  Context();
  // Opens a context of `agent`. Throws Error: FailedPrecondition for nullptr or if a context is current;
  // DeadlineExceeded or Cancelled if it had to wait for a running optimizer step and the wait failed.
  explicit Context(const std::shared_ptr<rpc::Agent>& agent);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Unique over all workers. Every worker that a call in the context has reached knows this id; it can be
  // sent as an argument.
  int64_t id() const;
  // For messages and logs.
  rpc::Id full_id() const;

 private:
  friend class ContextGuard;
  friend class ContextRef;

  std::weak_ptr<rpc::Agent> agent_;
  std::shared_ptr<ActiveContext> active_;
};

// Makes a context current for a scope, on any thread. Throws Error, FailedPrecondition, if another context is
// current.
class ContextGuard {
 public:
  // Enters `context`. The destructor makes the context current again that was current before, if any.
  explicit ContextGuard(const Context& context);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  std::shared_ptr<const ActiveContext> previous_;
};

// Returns the id of the context that is current for the calling code, also in a handler of a call that was
// made in a context.
std::optional<int64_t> current_context_id();

// The type of a context argument: the Context object, or its id on any worker that the context has reached.
class ContextRef {
 public:
  ContextRef(const Context& context);  // NOLINT: implicit by design, as the two below
  // A context of Agent::current(), by its id().
  ContextRef(int64_t id) : number_(id) {}
  // A context by its Context::full_id(), on any worker that it has reached.
  ContextRef(const rpc::Id& id) : id_(id) {}

  // Throws Error, FailedPrecondition, without an agent.
  std::shared_ptr<rpc::Agent> agent() const;
  // The id() that the constructor got; empty if it got the object or its full id.
  const std::optional<int64_t>& number() const { return number_; }
  // The full id; zero if the constructor got only the number.
  const rpc::Id& id() const { return id_; }

 private:
  std::shared_ptr<rpc::Agent> agent_;
  std::optional<int64_t> number_;
  rpc::Id id_;
};

}  // namespace gradwire::autograd
