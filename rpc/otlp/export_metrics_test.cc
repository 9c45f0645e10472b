#include "gradwire/rpc/otlp/export_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/otlp/testing/fake_collector.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/rpc/testing/group.h"

// The metrics of agents at a collector.
namespace gradwire::rpc {
namespace {

using testing::FakeCollector;
using testing::points_of;
using testing::senders_of;

int twice(int x) { return 2 * x; }
GRADWIRE_RPC_AS("otlp::twice", twice)

constexpr char kMade[] =
    "gradwire_rpc_calls_made_total{worker=worker0,function=otlp::twice,peer=worker1,code=OK} = 3";
constexpr char kServed[] =
    "gradwire_rpc_calls_served_total{worker=worker1,function=otlp::twice,peer=worker0,code=OK} = 3";

// The points of the last request of this worker.
std::vector<std::string> last_of(const FakeCollector& collector, const std::string& worker) {
  std::vector<std::string> points;
  for (const auto& request : collector.wait_for(1)) {
    EXPECT_EQ(senders_of(request).size(), 1u);
    if (senders_of(request).at(0).at("service.instance.id") == worker) points = points_of(request);
  }
  return points;
}

TEST(ExportMetrics, TwoAgentsOfAProcessHaveTheirOwnCollectors) {
  FakeCollector collectors[2];
  testing::Group group(2);
  std::unique_ptr<MetricsExport> exports[2];
  for (std::size_t i = 0; i < 2; ++i) {
    exports[i] =
        export_metrics({.endpoint = collectors[i].endpoint(), .interval = absl::Milliseconds(20)}, group[i]);
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(group[0]->rpc_sync<&twice>("worker1", i), 2 * i);
  group.shut_down();
  // The last export comes after the shutdown, and has everything.
  for (auto& each : exports) each->stop();
  EXPECT_THAT(last_of(collectors[0], "worker0"), ::testing::Contains(kMade));
  EXPECT_THAT(last_of(collectors[1], "worker1"), ::testing::Contains(kServed));
  EXPECT_TRUE(last_of(collectors[0], "worker1").empty());
  EXPECT_TRUE(last_of(collectors[1], "worker0").empty());
}

TEST(ExportMetrics, FamiliesAreThoseOfTheTextForPrometheus) {
  FakeCollector collector;
  testing::Group group(1);
  EXPECT_EQ(group[0]->rpc_sync<&twice>("worker0", 1), 2);
  export_metrics({.endpoint = collector.endpoint(), .interval = absl::Hours(1)}, group[0])->stop();
  const std::vector<std::string> points = last_of(collector, "worker0");
  for (const char* name :
       {"gradwire_agent_info{", "gradwire_rpc_call_seconds{", "gradwire_rpc_pending_calls{",
        "gradwire_rpc_workers{", "gradwire_store_calls_total{"}) {
    EXPECT_TRUE(std::any_of(points.begin(), points.end(), [&](const std::string& point) {
      return absl::StartsWith(point, name);
    })) << name;
  }
}

TEST(ExportMetrics, CurrentAgentIsTheDefault) {
  FakeCollector collector;
  EXPECT_EQ(status_of([] { export_metrics(); }).code(), absl::StatusCode::kFailedPrecondition);
  testing::Group group(2);
  const AgentGuard guard(group[1]);
  setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint().c_str(), 1);
  const auto exported = export_metrics({.interval = absl::Hours(1)});
  unsetenv("OTEL_EXPORTER_OTLP_ENDPOINT");
  exported->stop();
  EXPECT_FALSE(last_of(collector, "worker1").empty());
}

TEST(ExportMetrics, AgentWithoutCountersExportsItsTables) {
  FakeCollector collector;
  RpcBackendOptions options;
  options.metrics = false;
  testing::Group group(1, options);
  export_metrics({.endpoint = collector.endpoint(), .interval = absl::Hours(1)}, group[0])->stop();
  EXPECT_THAT(last_of(collector, "worker0"),
              ::testing::Contains("gradwire_rpc_pending_calls{worker=worker0} = 0"));
}

TEST(ExportMetrics, MistakesAreErrors) {
  testing::Group group(1);
  const absl::Status status =
      status_of([&] { export_metrics({.endpoint = "http://collector:4317"}, group[0]); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("exporting metrics"));
}

// The exporter holds the agent, which is shut down when the last owner goes.
TEST(ExportMetrics, AgentMayGoBeforeItsExporter) {
  FakeCollector collector;
  std::unique_ptr<MetricsExport> exported;
  {
    testing::Group group(1);
    exported =
        export_metrics({.endpoint = collector.endpoint(), .interval = absl::Milliseconds(10)}, group[0]);
    collector.wait_for(1);
  }
  exported = nullptr;
  EXPECT_FALSE(last_of(collector, "worker0").empty());
}

}  // namespace
}  // namespace gradwire::rpc
