#pragma once

#include <cstdint>

#include "base/execution_state.h"
#include "rpc/id.h"

namespace gradwire::autograd {

// The context that the calling thread works in, and whose worker's. By id alone: a state captured for later
// must not keep a context alive.
struct ActiveContext {
  rpc::Id id;
  // The incarnation of the agent on whose behalf this thread works.
  uint64_t self = 0;
};

using ActiveContextSlot = ExecutionSlot<ActiveContext>;

// The number that programs know a context by: equal on all workers, unique but for a chance of one in 2^63.
inline int64_t public_id(const rpc::Id& id) {
  auto mix = [](uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  const uint64_t mixed = mix(id.origin + mix(id.counter + 0x9e3779b97f4a7c15u)) & 0x7fffffffffffffffu;
  return mixed == 0 ? 1 : static_cast<int64_t>(mixed);
}

}  // namespace gradwire::autograd
