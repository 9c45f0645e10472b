#pragma once

#include <array>
#include <cstddef>

#include "gradwire/base/threads/executor.h"

namespace gradwire::rpc {

// Records how long the calls of one callee take, separately for small, medium and large messages: a callee
// that is fast on a small tensor may be slow on a large one. Thread-safe.
class CalleeCost {
 public:
  // The cost of calls whose message has this size.
  TaskCost* of(std::size_t message_bytes) {
    constexpr std::size_t kSmall = std::size_t{4} << 10;
    constexpr std::size_t kMedium = std::size_t{256} << 10;
    return &costs_[message_bytes <= kSmall ? 0 : message_bytes <= kMedium ? 1 : 2];
  }

 private:
  std::array<TaskCost, 3> costs_;
};

}  // namespace gradwire::rpc
