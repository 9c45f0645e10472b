#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/metrics/label_table.h"
#include "gradwire/base/metrics/registry.h"

namespace gradwire::rpc {

// Counts the calls between one agent and one worker, by function and result. CallMetrics owns it. At most
// kFunctions functions of each side have metrics of their own; the others are "other". After the first call
// of a function and with a result, counting takes no lock and allocates nothing: it searches for the function
// once, and adds to cells that no other thread writes (metrics::Counter). Thread-safe.
class PeerCalls {
 public:
  static constexpr std::size_t kFunctions = 128;

  // `peer`: the name of the worker. `registry` must outlive this object.
  PeerCalls(metrics::Registry& registry, absl::string_view peer);

  // A call that this agent made has ended. `took_ns`: nanoseconds since it began.
  void made(absl::string_view function, absl::StatusCode code, int64_t took_ns);
  // A call that this agent served has ended. `queued_ns`: nanoseconds from its arrival to its handler.
  // `served_ns`: from there to its result. A call that ended before it had a handler was queued until its
  // end, and `served_ns` is zero.
  // `function`: empty for one that this program does not have.
  void served(absl::string_view function, absl::StatusCode code, int64_t queued_ns, int64_t served_ns);
  // A call waited for room in the flow window to this worker.
  void waited_for_window(absl::Duration waited);

 private:
  // The calls of one function, by their results.
  class Results {
   public:
    Results(const PeerCalls& peer, metrics::Metric metric, absl::string_view function)
        : peer_(peer), metric_(metric), function_(function) {}
    // `slot`: that of the calling thread.
    void add(absl::StatusCode code, std::size_t slot);

   private:
    static constexpr std::size_t kCodes = 17;

    // Makes the counter of the code with this index.
    ABSL_ATTRIBUTE_NOINLINE metrics::Counter& make(std::size_t index);

    // Made when the first call has this result. First, because each call reads one of them, most calls that
    // of kOk: it is in the cache line of the references below.
    std::array<std::atomic<metrics::Counter*>, kCodes> by_code_{};
    const PeerCalls& peer_;
    const metrics::Metric metric_;
    const std::string function_;
  };
  struct Made {
    metrics::Histogram& seconds;
    Results results;
  };
  struct Served {
    metrics::Histogram& queue;
    metrics::Histogram& service;
    Results results;
  };

  // The metrics of a function that was not called yet. Not inline, so that the code of all other calls is
  // short: it has left the processor's cache when the next call ends.
  ABSL_ATTRIBUTE_NOINLINE Made& new_made(absl::string_view function);
  ABSL_ATTRIBUTE_NOINLINE Served& new_served(absl::string_view function);

  metrics::Registry& registry_;
  const std::string peer_;

  // Synchronised by themselves.
  metrics::LabelTable<Made, kFunctions> made_;
  metrics::LabelTable<Served, kFunctions> served_;
};

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
