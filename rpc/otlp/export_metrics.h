#pragma once

#include <memory>

#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/otlp/otlp_options.h"

namespace gradwire::rpc {

class MetricsExporter;

// Pushes the metrics of an agent to an OpenTelemetry collector while it exists. Thread-safe. Example:
//
//   init_rpc("trainer", -1, -1, options);
//   const auto exporter = export_metrics({.endpoint = "https://collector:4317"});
//   ...
//   shutdown();
//
// An exporter has one thread and one connection. It keeps the agent in memory, but not running.
class MetricsExport {
 public:
  // For export_metrics().
  explicit MetricsExport(std::unique_ptr<MetricsExporter> exporter);
  // As stop().
  ~MetricsExport();
  MetricsExport(const MetricsExport&) = delete;
  MetricsExport& operator=(const MetricsExport&) = delete;

  // Exports a last time and joins the thread, after OtlpOptions::timeout at the latest. After the shutdown of
  // the agent this has its last values. Idempotent.
  void stop();

 private:
  const std::unique_ptr<MetricsExporter> exporter_;
};

// Begins to push the metrics of `agent`; without an agent those of Agent::current(). Needs no collector yet:
// an export that fails is counted in gradwire_otlp_exports_total, and logged. Throws Error: InvalidArgument
// for a malformed option or variable; FailedPrecondition for a collector on another host without TLS and
// without consent; those of files that cannot be read, or that others may change; FailedPrecondition without
// an agent.
std::unique_ptr<MetricsExport> export_metrics(const OtlpOptions& options = {},
                                              std::shared_ptr<Agent> agent = nullptr);

}  // namespace gradwire::rpc
