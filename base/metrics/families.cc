#include "gradwire/base/metrics/families.h"

#include <algorithm>

namespace gradwire::metrics {
namespace {

constexpr Kind kCounter = Kind::kCounter;
constexpr Kind kGauge = Kind::kGauge;
constexpr Kind kHistogram = Kind::kHistogram;

struct Row {
  Metric metric;
  Family family;
};

constexpr Row kRows[] = {
    {Metric::kAgentInfo,
     {"gradwire_agent_info",
      kGauge,
      "1",
      {"version"},
      "The version of Gradwire that the worker was built from. The value is 1."}},

    {Metric::kCallsMade,
     {"gradwire_rpc_calls_made_total",
      kCounter,
      "calls",
      {"function", "peer", "code"},
      "Calls that this worker has made and that have ended, by function, called worker and result. The "
      "framework's own messages are functions named \"service N\"."}},
    {Metric::kCallSeconds,
     {"gradwire_rpc_call_seconds",
      kHistogram,
      "seconds",
      {"function"},
      "Time from the beginning of a call that this worker makes to its answer or error."}},
    {Metric::kCallsRepeated,
     {"gradwire_rpc_calls_repeated_total",
      kCounter,
      "calls",
      {},
      "Attempts of calls of idempotent functions after the first."}},
    {Metric::kLateAnswers,
     {"gradwire_rpc_late_answers_total",
      kCounter,
      "answers",
      {},
      "Answers that were dropped, because they arrived twice or after the end of their calls."}},
    {Metric::kPendingCalls,
     {"gradwire_rpc_pending_calls",
      kGauge,
      "calls",
      {},
      "Calls of this worker that wait for their answers, with the framework's own."}},
    {Metric::kFlowWaitSeconds,
     {"gradwire_rpc_flow_wait_seconds",
      kHistogram,
      "seconds",
      {"peer"},
      "Time for which calls have waited because the flow window to their worker was full. Calls that did not "
      "wait are not counted."}},

    {Metric::kCallsServed,
     {"gradwire_rpc_calls_served_total",
      kCounter,
      "calls",
      {"function", "peer", "code"},
      "Calls that this worker has answered, by function, calling worker and result. A function that this "
      "program does not have is named \"unknown\"."}},
    {Metric::kQueueSeconds,
     {"gradwire_rpc_queue_seconds",
      kHistogram,
      "seconds",
      {"function"},
      "Time from the arrival of a request to the beginning of its handler: for a thread, for its object, for "
      "its turn, or for its autograd context."}},
    {Metric::kServiceSeconds,
     {"gradwire_rpc_service_seconds",
      kHistogram,
      "seconds",
      {"function"},
      "Time from the beginning of a handler to its result, with the decoding of the arguments."}},
    {Metric::kCallsDenied,
     {"gradwire_rpc_calls_denied_total",
      kCounter,
      "calls",
      {},
      "Calls and messages of other workers that the policy of this worker has denied."}},
    {Metric::kServedCalls,
     {"gradwire_rpc_served_calls",
      kGauge,
      "calls",
      {},
      "Calls that have arrived and have no answer yet: running or waiting."}},

    {Metric::kBytesSent,
     {"gradwire_rpc_bytes_sent_total",
      kCounter,
      "bytes",
      {},
      "Bytes sent over all connections with other workers, and with this one."}},
    {Metric::kBytesReceived,
     {"gradwire_rpc_bytes_received_total", kCounter, "bytes", {}, "Bytes received over all connections."}},
    {Metric::kLinks, {"gradwire_rpc_links", kGauge, "connections", {}, "Connections that are open now."}},
    {Metric::kWorkers,
     {"gradwire_rpc_workers",
      kGauge,
      "workers",
      {"state"},
      "Workers that this one knows, by their state as this one sees it: alive, suspect, dead, left."}},
    {Metric::kRRefsOwned,
     {"gradwire_rpc_rrefs_owned", kGauge, "references", {}, "Objects behind RRefs that this worker owns."}},
    {Metric::kRRefsHeld,
     {"gradwire_rpc_rrefs_held",
      kGauge,
      "references",
      {},
      "References to objects of other workers that this worker holds."}},
    {Metric::kTableEntries,
     {"gradwire_rpc_table_entries",
      kGauge,
      "entries",
      {"table"},
      "Entries in each table of the agent, as in AgentTables. One that grows steadily is a leak."}},
    {Metric::kPoolThreads,
     {"gradwire_pool_threads", kGauge, "threads", {}, "Threads of the pool that runs handlers."}},
    {Metric::kPoolTasks,
     {"gradwire_pool_tasks", kGauge, "tasks", {}, "Tasks of this pool that are queued, running or waiting."}},
    {Metric::kArenaBytes,
     {"gradwire_shm_arena_bytes",
      kGauge,
      "bytes",
      {},
      "Shared memory that this worker has mapped to send large tensors to workers of its host."}},
    {Metric::kShmBytes,
     {"gradwire_shm_bytes_total",
      kCounter,
      "bytes",
      {"path"},
      "Bytes of large tensors that were sent through shared memory: copied into an arena, moved (made "
      "there), "
      "or through the ring because the arena had no room."}},
    {Metric::kShmDoorbells,
     {"gradwire_shm_doorbells_total",
      kCounter,
      "wakes",
      {},
      "Times that this worker has woken a worker of its host that slept."}},
    {Metric::kBufferPoolBytes,
     {"gradwire_buffer_pool_idle_bytes",
      kGauge,
      "bytes",
      {},
      "Memory that is kept for the messages that arrive next, after its last use."}},

    {Metric::kContexts,
     {"gradwire_autograd_contexts",
      kGauge,
      "contexts",
      {},
      "Live autograd contexts: opened here or reached by a message, and not released yet."}},
    {Metric::kPasses,
     {"gradwire_autograd_passes_total",
      kCounter,
      "passes",
      {"code"},
      "Backward passes of which this worker was the root and that have ended, by result."}},
    {Metric::kPassSeconds,
     {"gradwire_autograd_pass_seconds",
      kHistogram,
      "seconds",
      {},
      "Time of the backward passes of which this worker was the root."}},
    {Metric::kRememberedPasses,
     {"gradwire_autograd_remembered_passes",
      kGauge,
      "passes",
      {},
      "Passes that live contexts remember, running or ended."}},
    {Metric::kCleanupsUnderWay,
     {"gradwire_autograd_cleanups",
      kGauge,
      "contexts",
      {},
      "Releases of contexts that other workers have not confirmed yet."}},
    {Metric::kLateMessages,
     {"gradwire_autograd_late_messages_total",
      kCounter,
      "messages",
      {},
      "Messages that were dropped because their context was released before they arrived."}},
    {Metric::kUnjoinedGradients,
     {"gradwire_autograd_unjoined_gradients_total",
      kCounter,
      "gradients",
      {},
      "Gradients that ended at a tensor that an answer had brought outside every context."}},
    {Metric::kStepWaiters,
     {"gradwire_autograd_step_waiters",
      kGauge,
      "steps",
      {},
      "Optimizer steps and calls that wait at the step barrier (Consistency::kWait)."}},

    {Metric::kCollectives,
     {"gradwire_collective_operations_total",
      kCounter,
      "operations",
      {"group", "operation", "result"},
      "Operations of process groups that this process has ended, by result: ok or failed. The same for each "
      "agent of the process."}},
    {Metric::kCollectiveBytes,
     {"gradwire_collective_bytes_total",
      kCounter,
      "bytes",
      {"group", "operation"},
      "Bytes of the tensors that this process gave to these operations."}},
    {Metric::kCollectiveSeconds,
     {"gradwire_collective_seconds",
      kHistogram,
      "seconds",
      {"group", "operation"},
      "Time from the beginning of an operation to its end, with the wait for the other ranks. Its clock "
      "ticks every few milliseconds."}},

    {Metric::kStoreCalls,
     {"gradwire_store_calls_total",
      kCounter,
      "calls",
      {"operation", "code"},
      "Calls of the agent to the store of its group."}},
    {Metric::kStoreCallSeconds,
     {"gradwire_store_call_seconds",
      kHistogram,
      "seconds",
      {"operation"},
      "Time of these calls. The operations get, wait and watch include the wait for a key."}},

    {Metric::kLaunchRestarts,
     {"gradwire_launch_restarts_total",
      kCounter,
      "restarts",
      {},
      "Restarts of the job's workers after a failure."}},
    {Metric::kLaunchRounds,
     {"gradwire_launch_rounds_total",
      kCounter,
      "rounds",
      {},
      "Starts of the workers on this node: the first, restarts, and those after a node joined or left."}},
    {Metric::kLaunchWorkers,
     {"gradwire_launch_workers", kGauge, "processes", {}, "Workers of this node in the round that runs."}},
    {Metric::kLaunchScrapeFailures,
     {"gradwire_launch_scrape_failures_total",
      kCounter,
      "workers",
      {},
      "Workers of this node that did not give their metrics to the launcher in time."}},

    {Metric::kSeries,
     {"gradwire_metrics_series",
      kGauge,
      "series",
      {},
      "Series that the agent keeps. Beyond a bound the values of labels become \"other\"."}},
    {Metric::kOtlpExports,
     {"gradwire_otlp_exports_total",
      kCounter,
      "exports",
      {"result"},
      "Exports of all metrics to an OpenTelemetry collector, by result: ok, partial (it rejected some) or "
      "failed."}},
    {Metric::kOtlpRejectedPoints,
     {"gradwire_otlp_rejected_points_total",
      kCounter,
      "points",
      {},
      "Values that the collector of OpenTelemetry has rejected in exports whose result was partial."}},
};
static_assert(std::size(kRows) == kMetrics);

// The families in an array of their own, with a check that no row is out of order.
constexpr std::array<Family, kMetrics> families() {
  std::array<Family, kMetrics> list = {};
  for (std::size_t i = 0; i < kMetrics; ++i) {
    if (static_cast<std::size_t>(kRows[i].metric) != i) throw "the rows are not in the order of Metric";
    list[i] = kRows[i].family;
  }
  return list;
}
constexpr std::array<Family, kMetrics> kFamilies = families();

}  // namespace

absl::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::kCounter:
      return "counter";
    case Kind::kGauge:
      return "gauge";
    case Kind::kHistogram:
      return "histogram";
  }
  return "untyped";
}

std::size_t Family::label_count() const {
  return static_cast<std::size_t>(
      std::count_if(labels.begin(), labels.end(), [](absl::string_view label) { return !label.empty(); }));
}

const Family& family_of(Metric metric) { return kFamilies[static_cast<std::size_t>(metric)]; }

absl::Span<const Family> all_families() { return kFamilies; }

}  // namespace gradwire::metrics
