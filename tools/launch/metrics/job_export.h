#pragma once

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "gradwire/rpc/otlp/metrics_exporter.h"
#include "gradwire/tools/launch/io/loop.h"
#include "gradwire/tools/launch/metrics/job_metrics.h"

namespace gradwire::tools {

// Pushes the metrics of the job on this node to an OpenTelemetry collector: those of the launcher, and those
// of each worker as of a sender of its own.
class JobExport {
 public:
  // Returns nullptr without an endpoint. `endpoint`: as OtlpOptions::endpoint; everything else is set by the
  // environment. `run_id`: the name of the job, unless the environment has another one. `host`: the name of
  // this node's launcher. Starts a thread. `metrics` must outlive the object. Errors: those of resolve()
  // (rpc/otlp/collector_options.h).
  static absl::StatusOr<std::unique_ptr<JobExport>> start(const std::string& endpoint,
                                                          const std::string& run_id, const std::string& host,
                                                          const JobMetrics& metrics);

  // Where it sends: "collector:4317".
  const std::string& address() const { return address_; }
  // Exports a last time, and serves the events of `loop` meanwhile. When `stopped` is true, the export is
  // ended.
  void end(FdLoop& loop, absl::FunctionRef<bool()> stopped);

 private:
  JobExport(std::string address, rpc::MetricsExporter::Setup setup);

  const std::string address_;
  rpc::MetricsExporter exporter_;
};

}  // namespace gradwire::tools
