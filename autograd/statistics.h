#pragma once

#include <cstddef>
#include <cstdint>

#include "gradwire/rpc/calls/agent.h"

namespace gradwire::autograd {

// Sizes and counters of the autograd part of one agent.
struct AutogradStatistics {
  // Live contexts: opened here or reached by a message of another worker, and not released yet.
  std::size_t contexts = 0;
  // Releases that other workers have not confirmed yet.
  std::size_t cleanups_under_way = 0;
  // Messages that were dropped because their context was released before they arrived. Since the agent
  // started.
  uint64_t late_messages = 0;
  // Released contexts that the agent remembers, so that late messages do not create them again. Bounded
  // (autograd/context/context_table.h).
  std::size_t released_contexts = 0;
  // Workers whose contexts the agent has or remembers. Bounded in the same way.
  std::size_t context_origins = 0;
  // Passes that live contexts remember, including ended ones. Bounded for each context.
  std::size_t passes = 0;
  // Requests to end a context that were refused, because their sender takes no part in the context. Since the
  // agent started.
  uint64_t refused_cleanups = 0;
  // Gradients that ended at a tensor that an answer had brought outside every context. They did not reach the
  // leaves that the tensor was computed from. Since the agent started.
  uint64_t unjoined_gradients = 0;
  // Optimizer steps that wait for the backward of other contexts, and calls that wait for such steps
  // (Consistency::kWait).
  std::size_t waiting_for_steps = 0;
};

// Throws Error, FailedPrecondition, for an agent that started before //autograd was loaded.
AutogradStatistics statistics(const rpc::Agent& agent);

}  // namespace gradwire::autograd
