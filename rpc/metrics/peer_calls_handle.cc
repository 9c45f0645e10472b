#include "gradwire/rpc/metrics/peer_calls_handle.h"

#include "gradwire/rpc/metrics/call_metrics.h"

namespace gradwire::rpc {

PeerCalls& PeerCallsHandle::find(CallMetrics& metrics, absl::string_view worker) {
  PeerCalls& calls = metrics.with(worker);
  calls_.store(&calls, std::memory_order_release);
  return calls;
}

}  // namespace gradwire::rpc
