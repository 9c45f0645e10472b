#pragma once

#include <cstddef>
#include <limits>

namespace gradwire::rpc {

// How much one other worker can make this worker keep by the references that it sends. For example, the owner
// of what it sends is an accomplice that never answers.
struct ReferenceBounds {
  // Maximum number of forks that this worker holds because the other worker gave them.
  std::size_t forks = std::numeric_limits<std::size_t>::max();
  // Maximum number of messages to the other worker that wait for its answer. Above it, the references that it
  // sends, and those to its values, are declined.
  std::size_t messages = std::numeric_limits<std::size_t>::max();
};

}  // namespace gradwire::rpc
