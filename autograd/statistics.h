#pragma once

#include <cstddef>
#include <cstdint>

#include "gradwire/rpc/agent.h"

namespace gradwire::autograd {

// Sizes and counters of one agent's autograd part.
struct AutogradStatistics {
  // Contexts that live here: opened here, or reached from another worker, and not released yet.
  std::size_t contexts = 0;
  // Releases that other workers have not confirmed yet.
  std::size_t cleanups_under_way = 0;
  // Messages of contexts that had been released when they came; they were dropped. Since the agent started.
  uint64_t late_messages = 0;
  // Released contexts that are remembered, so that late messages do not make them again. Bounded, as the next
  // one (autograd/context/context_table.h).
  std::size_t released_contexts = 0;
  // The workers that those contexts were opened on.
  std::size_t context_origins = 0;
  // Passes that live contexts remember, ended ones too; bounded for each context.
  std::size_t passes = 0;
  // Ends of contexts that workers claimed which take no part in them. Since the agent started.
  uint64_t refused_cleanups = 0;
  // Gradients that ended here at a tensor which an answer had brought outside every context, and so did not
  // reach what it was computed from. Since the agent started.
  uint64_t unjoined_gradients = 0;
};

// Throws Error, FailedPrecondition, for an agent that started before //autograd was loaded.
AutogradStatistics statistics(const rpc::Agent& agent);

}  // namespace gradwire::autograd
