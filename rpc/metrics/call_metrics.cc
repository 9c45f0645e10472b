#include "gradwire/rpc/metrics/call_metrics.h"

#include <string>

namespace gradwire::rpc {

using metrics::Metric;

CallMetrics::CallMetrics(metrics::Registry& registry) : registry_(registry) {}

void CallMetrics::Results::add(absl::StatusCode code) {
  auto index = static_cast<std::size_t>(code);
  // A code of another process may be outside of the enumeration.
  if (index >= kCodes) index = static_cast<std::size_t>(absl::StatusCode::kUnknown);
  std::atomic<metrics::Counter*>& place = by_code_[index];
  metrics::Counter* counter = place.load(std::memory_order_acquire);
  if (counter == nullptr) {
    // Two threads may do this at the same time: the registry gives both the same counter.
    const std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(index));
    counter = &registry_.counter(metric_, {function_, peer_, name});
    place.store(counter, std::memory_order_release);
  }
  counter->add();
}

void CallMetrics::made(absl::string_view function, absl::string_view to, absl::StatusCode code,
                       absl::Duration took) {
  Made& calls = made_.find(function, [this](absl::string_view name) {
    return Made{registry_.histogram(Metric::kCallSeconds, {name}), std::string(name), {}};
  });
  calls.seconds.record(took);
  calls.peers
      .find(to,
            [&](absl::string_view peer) {
              return Results(registry_, Metric::kCallsMade, calls.function, peer);
            })
      .add(code);
}

void CallMetrics::served(absl::string_view function, absl::string_view from, absl::StatusCode code,
                         absl::Duration queued, absl::Duration served) {
  Served& calls = served_.find(function.empty() ? "unknown" : function, [this](absl::string_view name) {
    return Served{registry_.histogram(Metric::kQueueSeconds, {name}),
                  registry_.histogram(Metric::kServiceSeconds, {name}),
                  std::string(name),
                  {}};
  });
  calls.queue.record(queued);
  if (served > absl::ZeroDuration()) calls.service.record(served);
  calls.peers
      .find(from,
            [&](absl::string_view peer) {
              return Results(registry_, Metric::kCallsServed, calls.function, peer);
            })
      .add(code);
}

void CallMetrics::waited_for_window(absl::string_view to, absl::Duration waited) {
  registry_.histogram(Metric::kFlowWaitSeconds, {to}).record(waited);
}

}  // namespace gradwire::rpc
