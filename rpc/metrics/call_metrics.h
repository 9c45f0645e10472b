#pragma once

#include <array>
#include <atomic>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/metrics/label_table.h"
#include "gradwire/base/metrics/registry.h"

namespace gradwire::rpc {

// Counts the calls of one agent, by function, other worker and result. The metrics of a function and of a
// worker are found without a lock, and without allocating memory after the first call. At most kFunctions
// functions and kPeers workers have metrics of their own; the others are "other". Thread-safe.
class CallMetrics {
 public:
  static constexpr std::size_t kFunctions = 128;
  static constexpr std::size_t kPeers = 128;

  // `registry` must outlive this object.
  explicit CallMetrics(metrics::Registry& registry);

  // A call that this worker made has ended. `took`: since it began.
  void made(absl::string_view function, absl::string_view to, absl::StatusCode code, absl::Duration took);
  // A call that this worker served has ended. `queued`: from its arrival to its handler. `served`: from there
  // to its result. A call that ended before it had a handler was queued until its end, and `served` is zero.
  // `function`: empty for one that this program does not have.
  void served(absl::string_view function, absl::string_view from, absl::StatusCode code,
              absl::Duration queued, absl::Duration served);
  // A call waited for room in the flow window to this worker.
  void waited_for_window(absl::string_view to, absl::Duration waited);

 private:
  // The calls of one function to, or from, one worker.
  class Results {
   public:
    Results(metrics::Registry& registry, metrics::Metric metric, absl::string_view function,
            absl::string_view peer)
        : registry_(registry), metric_(metric), function_(function), peer_(peer) {}
    void add(absl::StatusCode code);

   private:
    static constexpr std::size_t kCodes = 17;

    metrics::Registry& registry_;
    const metrics::Metric metric_;
    const std::string function_;
    const std::string peer_;
    // Made when the first call has this result.
    std::array<std::atomic<metrics::Counter*>, kCodes> by_code_{};
  };
  using ByPeer = metrics::LabelTable<Results, kPeers>;
  struct Made {
    metrics::Histogram& seconds;
    const std::string function;
    ByPeer peers;
  };
  struct Served {
    metrics::Histogram& queue;
    metrics::Histogram& service;
    const std::string function;
    ByPeer peers;
  };

  metrics::Registry& registry_;
  metrics::LabelTable<Made, kFunctions> made_;
  metrics::LabelTable<Served, kFunctions> served_;
};

}  // namespace gradwire::rpc
