#pragma once

#include <atomic>
#include <cstdint>

#include "gradwire/rpc/core/worker.h"

// The id of an agent's own worker. An open group assigns it when the worker joins. Flight records may be
// written at this time, on other threads, so everything that runs before the end of the join uses these
// functions.
namespace gradwire::rpc {

// Async-signal-safe.
inline int32_t shared_id(const Worker& self) {
  // std::atomic_ref of a const type needs C++26. load() changes nothing.
  return std::atomic_ref<int32_t>(const_cast<int32_t&>(self.id)).load(std::memory_order_relaxed);
}

inline void set_shared_id(Worker& self, int32_t id) {
  std::atomic_ref<int32_t>(self.id).store(id, std::memory_order_relaxed);
}

}  // namespace gradwire::rpc
