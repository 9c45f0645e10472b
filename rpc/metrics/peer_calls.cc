#include "gradwire/rpc/metrics/peer_calls.h"

#include "gradwire/base/metrics/thread_slot.h"

namespace gradwire::rpc {

using metrics::Metric;

PeerCalls::PeerCalls(metrics::Registry& registry, absl::string_view peer)
    : registry_(registry), peer_(peer) {}

void PeerCalls::Results::add(absl::StatusCode code, std::size_t slot) {
  auto index = static_cast<std::size_t>(code);
  // A code of another process may be outside of the enumeration.
  if (index >= kCodes) index = static_cast<std::size_t>(absl::StatusCode::kUnknown);
  metrics::Counter* const counter = by_code_[index].load(std::memory_order_acquire);
  (counter != nullptr ? *counter : make(index)).add_in(slot);
}

// Two threads may do this at the same time: the registry gives both the same counter.
metrics::Counter& PeerCalls::Results::make(std::size_t index) {
  const std::string code = absl::StatusCodeToString(static_cast<absl::StatusCode>(index));
  metrics::Counter& counter = peer_.registry_.counter(metric_, {function_, peer_.peer_, code});
  by_code_[index].store(&counter, std::memory_order_release);
  return counter;
}

void PeerCalls::made(absl::string_view function, absl::StatusCode code, int64_t took_ns) {
  Made* const known = made_.known(function);
  Made& calls = known != nullptr ? *known : new_made(function);
  const std::size_t slot = metrics::thread_slot();
  calls.seconds.record_in(slot, took_ns);
  calls.results.add(code, slot);
}

PeerCalls::Made& PeerCalls::new_made(absl::string_view function) {
  return made_.find(function, [this](absl::string_view name) {
    return Made{registry_.histogram(Metric::kCallSeconds, {name}), {*this, Metric::kCallsMade, name}};
  });
}

void PeerCalls::served(absl::string_view function, absl::StatusCode code, int64_t queued_ns,
                       int64_t served_ns) {
  if (function.empty()) function = "unknown";
  Served* const known = served_.known(function);
  Served& calls = known != nullptr ? *known : new_served(function);
  const std::size_t slot = metrics::thread_slot();
  calls.queue.record_in(slot, queued_ns);
  if (served_ns > 0) calls.service.record_in(slot, served_ns);
  calls.results.add(code, slot);
}

PeerCalls::Served& PeerCalls::new_served(absl::string_view function) {
  return served_.find(function, [this](absl::string_view name) {
    return Served{registry_.histogram(Metric::kQueueSeconds, {name}),
                  registry_.histogram(Metric::kServiceSeconds, {name}),
                  {*this, Metric::kCallsServed, name}};
  });
}

void PeerCalls::waited_for_window(absl::Duration waited) {
  registry_.histogram(Metric::kFlowWaitSeconds, {peer_}).record(waited);
}

PeerCalls& PeerCallsHandle::find(CallMetrics& metrics, absl::string_view worker) {
  PeerCalls& calls = metrics.with(worker);
  calls_.store(&calls, std::memory_order_release);
  return calls;
}

}  // namespace gradwire::rpc
