#pragma once

#include <cstddef>
#include <cstdint>

#include "rpc/agent.h"

namespace gradwire::autograd {

// What one agent's autograd part holds and has seen.
struct AutogradStatistics {
  // Contexts that live here: opened here, or reached from another worker, and not released yet.
  std::size_t contexts = 0;
  // Releases that other workers have not confirmed yet.
  std::size_t cleanups_under_way = 0;
  // Messages of contexts that had been released when they came; they were dropped. Since the agent started.
  uint64_t late_messages = 0;
};

// Throws Error, FailedPrecondition, for an agent that started before //autograd was loaded.
AutogradStatistics statistics(const rpc::Agent& agent);

}  // namespace gradwire::autograd
