#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"
#include "gradwire/base/metrics/label_table.h"
#include "gradwire/base/metrics/registry.h"
#include "gradwire/rpc/metrics/peer_calls.h"

namespace gradwire::rpc {

// Counts the calls of one agent, by function, other worker and result. At most kPeers workers have metrics of
// their own; the others are "other". Thread-safe.
class CallMetrics {
 public:
  static constexpr std::size_t kPeers = 128;

  // `registry` must outlive this object.
  explicit CallMetrics(metrics::Registry& registry) : registry_(registry) {}

  // The metrics of the calls with the worker of this name. They live as long as this object, also if the
  // worker is lost. PeerCallsHandle keeps them, so that a call need not search for the name.
  PeerCalls& with(absl::string_view worker) {
    return peers_.find(worker, [this](absl::string_view name) { return PeerCalls(registry_, name); });
  }

 private:
  metrics::Registry& registry_;
  // Synchronised by itself.
  metrics::LabelTable<PeerCalls, kPeers> peers_;
};

}  // namespace gradwire::rpc
