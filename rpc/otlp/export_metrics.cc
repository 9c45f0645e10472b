#include "gradwire/rpc/otlp/export_metrics.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/otlp/collector_options.h"
#include "gradwire/rpc/otlp/metrics_exporter.h"

namespace gradwire::rpc {

MetricsExport::MetricsExport(std::unique_ptr<MetricsExporter> exporter) : exporter_(std::move(exporter)) {}

MetricsExport::~MetricsExport() = default;

void MetricsExport::stop() { exporter_->stop(); }

std::unique_ptr<MetricsExport> export_metrics(const OtlpOptions& options, std::shared_ptr<Agent> agent) {
  if (agent == nullptr) agent = Agent::current();
  const std::string worker = agent->services().self().name;
  absl::StatusOr<CollectorOptions> collector = resolve(options);
  if (!collector.ok()) throw Error(with_context(collector.status(), "exporting metrics"));
  collector->attributes.emplace("service.instance.id", worker);
  std::shared_ptr<metrics::Registry> registry = agent->services().metrics();
  MetricsSource source = [agent = std::move(agent), since = absl::Now()] {
    return std::vector<MetricsText>{{.text = agent->metrics_text(), .since = since, .attributes = {}}};
  };
  return std::make_unique<MetricsExport>(
      std::make_unique<MetricsExporter>(MetricsExporter::Setup{.options = *std::move(collector),
                                                               .source = std::move(source),
                                                               .registry = std::move(registry),
                                                               .worker = worker}));
}

}  // namespace gradwire::rpc
