#pragma once

#include <cstdint>

namespace gradwire::rpc {

// What happens to a call for which a worker's window (FlowOptions) has no room.
enum class FlowPolicy {
  // The calling thread waits, in the order of arrival and within the call's deadline (DeadlineExceeded).
  kWait,
  // The call fails at once with ResourceExhausted.
  kResourceExhausted,
};

// How much may be under way from this worker to one other, itself included, before it is answered. The messages of the
// framework itself (references, backward passes, cancellations) do not count and are never held up.
//
// Calls that nest in a circle hold their places while they wait for one another: a window that is full of outer calls
// lets no inner one out until some deadline comes.
struct FlowOptions {
  // 0: no bound; at most kMostCalls count.
  uint32_t max_calls = 16'384;
  // Of requests, as they leave. 0: no bound; at most kMostBytes count. A request larger than this goes when nothing
  // else is under way.
  uint64_t max_bytes = uint64_t{1} << 30;
  // What a call does that finds no room.
  FlowPolicy when_full = FlowPolicy::kWait;

  // The largest bound on calls that counts.
  static constexpr uint32_t kMostCalls = (uint32_t{1} << 21) - 1;
  // The largest bound on bytes that counts.
  static constexpr uint64_t kMostBytes = (uint64_t{1} << 42) - 1;
};

}  // namespace gradwire::rpc
