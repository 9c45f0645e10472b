#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "gradwire/codec/id.h"

namespace gradwire::autograd {

// Keeps optimizer steps on a worker's parameters apart from the forwards that still need their backward
// (proto autograd.proto, "Optimizer steps"): bookkeeping alone.
//
// A context is forwarding here from a request of its until a pass of it ends here, it steps here, or it is
// released. While the barrier is open (no optimizer waits) it only keeps these books. While it is armed,
//   - a step runs when no other context is forwarding, no step that shares a parameter with it runs, and no
//     request that came before it waits for a step to end: steps on different parameters overlap;
//   - a request of a context that is forwarding here, or was admitted anywhere, passes unless a step runs;
//   - any other request waits for the steps that came before it.
// So what a step waits for never waits for a step, and every step's turn comes.
//
// Tickets name who waits; the caller allocates them, unique. Every method that may let somebody pass returns
// their tickets, in order. Not thread-safe.
class StepBarrier {
 public:
  using Tickets = std::vector<uint64_t>;
  // The parameters that a step changes: any numbers that identify them on this worker, ascending.
  using Parameters = std::shared_ptr<const std::vector<uintptr_t>>;

  // Counted: one for each optimizer that waits.
  void arm() { ++armed_; }
  Tickets disarm();
  bool armed() const { return armed_ > 0; }

  // A request of `context` wants to run.
  Tickets request(uint64_t ticket, const rpc::Id& context, bool admitted);
  // The context was admitted somewhere else: its requests that wait here may pass.
  Tickets admitted(const rpc::Id& context);
  // A step for `context`, which is not forwarding any more, wants to run; step_ended() follows once it
  // passed.
  Tickets step(uint64_t ticket, const rpc::Id& context, const Parameters& parameters);
  // `parameters`: those of the step.
  Tickets step_ended(const Parameters& parameters);

  // A pass of the context has ended here, or the context was released: it is not forwarding any more.
  Tickets left(const rpc::Id& context);
  // The waiter of `ticket` has given up. False, and nothing happens, when it has passed already.
  bool give_up(uint64_t ticket, Tickets& passed);

  std::size_t forwarding() const { return forwarding_.size(); }
  const absl::flat_hash_set<rpc::Id>& forwarding_contexts() const { return forwarding_; }
  std::size_t waiting() const { return queue_.size(); }

 private:
  struct Waiter {
    uint64_t ticket;
    rpc::Id context;
    bool is_step;
    bool admitted;
    Parameters parameters;
  };

  bool is_being_stepped(const Parameters& parameters) const;
  Tickets pump();

  int armed_ = 0;
  // The parameters of the steps that run.
  std::vector<Parameters> running_;
  absl::flat_hash_set<rpc::Id> forwarding_;
  std::list<Waiter> queue_;
};

}  // namespace gradwire::autograd
