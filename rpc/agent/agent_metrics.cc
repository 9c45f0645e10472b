#include "gradwire/rpc/agent/agent_metrics.h"

#include <array>
#include <cstdlib>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/metrics/registry.h"
#include "gradwire/base/metrics/samples.h"
#include "gradwire/base/version.h"

namespace gradwire::rpc {
namespace {

using metrics::Metric;
using metrics::Samples;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

void add_statistics(const AgentStatistics& statistics, Samples& samples) {
  samples.add(Metric::kCallsRepeated, {}, statistics.calls_repeated);
  samples.add(Metric::kLateAnswers, {}, statistics.late_answers);
  samples.add(Metric::kCallsDenied, {}, statistics.calls_denied);
  samples.add(Metric::kBytesSent, {}, statistics.bytes_sent);
  samples.add(Metric::kBytesReceived, {}, statistics.bytes_received);
}

void add_tables(const AgentTables& tables, Samples& samples) {
  samples.add(Metric::kPendingCalls, {}, tables.pending_calls);
  samples.add(Metric::kServedCalls, {}, tables.served_calls);
  samples.add(Metric::kLinks, {}, tables.links);
  samples.add(Metric::kRRefsOwned, {}, tables.owned_rrefs);
  samples.add(Metric::kRRefsHeld, {}, tables.held_forks);
  tables.for_each(
      [&](const char* name, std::size_t count) { samples.add(Metric::kTableEntries, {name}, count); });
}

void add_workers(const Peers& peers, Samples& samples) {
  constexpr std::array<absl::string_view, 4> kStates = {"alive", "suspect", "dead", "left"};
  std::array<uint64_t, 4> counts = {};
  for (const Worker& worker : peers.workers()) {
    const std::shared_ptr<Peer> peer = peers.peer(worker.incarnation);
    if (peer == nullptr) continue;
    switch (peer->state()) {
      case WorkerState::kAlive:
        ++counts[0];
        break;
      case WorkerState::kSuspect:
        ++counts[1];
        break;
      case WorkerState::kDead:
        ++counts[2];
        break;
      case WorkerState::kLeft:
        ++counts[3];
        break;
    }
  }
  for (std::size_t i = 0; i < kStates.size(); ++i) samples.add(Metric::kWorkers, {kStates[i]}, counts[i]);
}

void add_shm(const transport::ShmCounters& shm, Samples& samples) {
  samples.add(Metric::kShmBytes, {"arena"}, shm.arena_bytes.load(std::memory_order_relaxed));
  samples.add(Metric::kShmBytes, {"moved"}, shm.moved_bytes.load(std::memory_order_relaxed));
  samples.add(Metric::kShmBytes, {"ring"}, shm.ring_bytes.load(std::memory_order_relaxed));
  samples.add(Metric::kShmDoorbells, {}, shm.doorbells.load(std::memory_order_relaxed));
  samples.add(Metric::kArenaBytes, {},
              static_cast<uint64_t>(std::max<int64_t>(0, shm.mapped_bytes.load(std::memory_order_relaxed))));
}

}  // namespace

std::string AgentMetrics::text() const {
  const AgentRuntime& runtime = sources_.runtime;
  Samples samples({{"worker", runtime.self.name}});
  samples.add(Metric::kAgentInfo, {kVersion}, uint64_t{1});
  add_statistics(sources_.statistics(), samples);
  add_tables(sources_.tables(), samples);
  add_workers(sources_.peers, samples);
  samples.add(Metric::kPoolThreads, {}, static_cast<uint64_t>(runtime.executor->threads()));
  samples.add(Metric::kPoolTasks, {}, static_cast<uint64_t>(runtime.executor->pending()));
  add_shm(sources_.shm, samples);
  samples.add(Metric::kBufferPoolBytes, {}, sources_.pool.idle_bytes());
  for (const auto& extension : runtime.extensions) extension->collect(samples);
  metrics::collect_process(samples);
  if (runtime.metrics != nullptr) {
    runtime.metrics->collect(samples);
    samples.add(Metric::kSeries, {}, runtime.metrics->series());
  }
  return samples.text();
}

absl::Status AgentMetrics::serve() {
  const RpcBackendOptions& options = sources_.runtime.options;
  transport::HttpOptions http;
  http.address =
      options.metrics_address.empty() ? environment("GRADWIRE_METRICS_ADDRESS") : options.metrics_address;
  if (http.address.empty()) return absl::OkStatus();
  http.insecure = options.metrics_insecure || options.security.insecure ||
                  environment("GRADWIRE_METRICS_INSECURE") == "1";
  http.consent = "RpcBackendOptions::metrics_insecure or GRADWIRE_METRICS_INSECURE=1";
  absl::StatusOr<std::unique_ptr<transport::HttpServer>> server = transport::HttpServer::start(
      http, {{"/metrics", {std::string(transport::kMetricsType), [this] { return text(); }}},
             {"/healthz", {.make = [] { return std::string("ok\n"); }}}});
  if (!server.ok()) return with_context(server.status(), "serving metrics");
  server_ = *std::move(server);
  log(LogLevel::kInfo, "worker \"", sources_.runtime.self.name, "\" serves its metrics at ",
      server_->address());
  return absl::OkStatus();
}

void AgentMetrics::stop() {
  if (server_ != nullptr) server_->stop();
}

}  // namespace gradwire::rpc
