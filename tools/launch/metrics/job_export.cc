#include "gradwire/tools/launch/metrics/job_export.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/name.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/rpc/otlp/collector_options.h"
#include "gradwire/rpc/otlp/otlp_reader.h"

namespace gradwire::tools {
namespace {

constexpr char kInstance[] = "service.instance.id";
// How often events are served during the last export.
constexpr absl::Duration kTurn = absl::Milliseconds(20);

std::vector<rpc::MetricsText> read(const JobMetrics& metrics, const std::string& host) {
  std::vector<rpc::MetricsText> texts;
  for (JobMetrics::Text& each : metrics.texts()) {
    std::map<std::string, std::string> attributes = {{kInstance, absl::StrCat("launch ", host)}};
    if (each.rank >= 0) {
      attributes["gradwire.rank"] = absl::StrCat(each.rank);
      const std::optional<std::string> name = rpc::first_label_in(each.text, "worker");
      attributes[kInstance] =
          name && name->size() <= kMaxNameLength ? *name : absl::StrCat("rank ", each.rank);
    }
    texts.push_back({.text = std::move(each.text), .since = each.since, .attributes = std::move(attributes)});
  }
  return texts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobExport>> JobExport::start(const std::string& endpoint,
                                                            const std::string& run_id,
                                                            const std::string& host,
                                                            const JobMetrics& metrics) {
  if (endpoint.empty()) return nullptr;
  // The launcher sets this variable for its workers.
  const rpc::EnvironmentReader environment = [&run_id](const char* name) {
    return name == std::string("TORCHELASTIC_RUN_ID") ? run_id : rpc::read_environment(name);
  };
  GRADWIRE_ASSIGN_OR_RETURN(rpc::CollectorOptions options, rpc::resolve({.endpoint = endpoint}, environment));
  std::string address = options.address;
  return made_with_threads([&] {
    return std::unique_ptr<JobExport>(
        new JobExport(std::move(address), {.options = std::move(options),
                                           .source = [&metrics, host] { return read(metrics, host); },
                                           .registry = metrics.registry(),
                                           .worker = "launch"}));
  });
}

JobExport::JobExport(std::string address, rpc::MetricsExporter::Setup setup)
    : address_(std::move(address)), exporter_(std::move(setup)) {}

void JobExport::end(FdLoop& loop, absl::FunctionRef<bool()> stopped) {
  while (!stopped()) {
    if (exporter_.stop_within(kTurn)) return;
    loop.run_once(absl::ZeroDuration());
  }
  exporter_.abandon();
}

}  // namespace gradwire::tools
