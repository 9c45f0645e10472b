#pragma once

#include <atomic>

#include "absl/strings/string_view.h"

namespace gradwire::rpc {

class CallMetrics;
class PeerCalls;

// The metrics of the calls with one worker, found by its name at its first call. Each Peer keeps them for the
// calls that are made, and each Link for those that are served. Without metrics nothing is ever found. The
// handle does not use what it has found, so it may live longer than the metrics. Thread-safe.
class PeerCallsHandle {
 public:
  // The metrics of the calls of an agent with this worker. REQUIRES: always the same agent and worker.
  PeerCalls& in(CallMetrics& metrics, absl::string_view worker) {
    PeerCalls* const calls = calls_.load(std::memory_order_acquire);
    return calls != nullptr ? *calls : find(metrics, worker);
  }

 private:
  PeerCalls& find(CallMetrics& metrics, absl::string_view worker);

  // Two threads may set it at the same time, to the same value.
  std::atomic<PeerCalls*> calls_{nullptr};
};

}  // namespace gradwire::rpc
