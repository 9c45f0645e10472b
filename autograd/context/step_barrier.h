#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "gradwire/base/containers/hash_map.h"
#include "gradwire/codec/id.h"

namespace gradwire::autograd {

// Decides when optimizer steps on a worker's parameters and requests may run, so that no step comes between a
// forward and its backward (proto/autograd.proto, "Optimizer steps"). It only decides: it blocks no thread.
//
// A context is forwarding here from its first request until one of its passes ends here, it steps here, or it
// is released. While the barrier is not armed (no optimizer has Consistency::kWait), everything passes, and
// the barrier only records the forwarding contexts. While it is armed,
//   - a step runs when no other context is forwarding, no step that shares a parameter with it runs, and no
//     earlier request waits for a step to end: steps on different parameters overlap;
//   - a request of a context that is forwarding here, or was admitted on any worker, passes unless a step
//   runs;
//   - any other request waits for the steps that arrived before it.
// Therefore a step waits only for contexts that do not wait for a step, and every step runs eventually.
//
// A ticket identifies a waiter. The caller allocates tickets and must not reuse them. Every method that may
// let waiters pass returns their tickets, in order. Not thread-safe.
class StepBarrier {
 public:
  using Tickets = std::vector<uint64_t>;
  // The parameters that a step changes: any numbers that identify them on this worker, ascending.
  using Parameters = std::shared_ptr<const std::vector<uintptr_t>>;

  // Arms the barrier. Each optimizer with Consistency::kWait arms it once and disarms it once.
  void arm() { ++armed_; }
  Tickets disarm();
  bool armed() const { return armed_ > 0; }

  // Adds a request of `context`. `admitted`: the context was admitted on some worker.
  Tickets request(uint64_t ticket, const rpc::Id& context, bool admitted);
  // Records that the context was admitted on another worker: its requests that wait here may pass.
  Tickets admitted(const rpc::Id& context);
  // Adds a step for `context`, which then is not forwarding any more. step_ended() must follow after the step
  // has passed.
  Tickets step(uint64_t ticket, const rpc::Id& context, const Parameters& parameters);
  // Records that a step has ended. `parameters`: the object that step() got.
  Tickets step_ended(const Parameters& parameters);

  // Records that a pass of the context has ended here, or that the context was released: it is not forwarding
  // any more.
  Tickets left(const rpc::Id& context);
  // Removes the waiter of `ticket`. Returns false and does nothing if it has passed already.
  bool give_up(uint64_t ticket, Tickets& passed);

  std::size_t forwarding() const { return forwarding_.size(); }
  const HashSet<rpc::Id>& forwarding_contexts() const { return forwarding_; }
  std::size_t waiting() const { return queue_.size(); }

 private:
  struct Waiter {
    uint64_t ticket;
    rpc::Id context;
    bool is_step;
    bool admitted;
    Parameters parameters;
  };

  // Whether a running step changes one of these parameters.
  bool is_being_stepped(const Parameters& parameters) const;
  // Lets the waiters pass that may run now.
  Tickets pump();

  int armed_ = 0;
  // The parameters of each running step.
  std::vector<Parameters> running_;
  HashSet<rpc::Id> forwarding_;
  std::list<Waiter> queue_;
};

}  // namespace gradwire::autograd
