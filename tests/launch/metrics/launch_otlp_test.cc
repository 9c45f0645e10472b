// The metrics of a job that its launcher pushes to a collector.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gradwire/rpc/otlp/testing/fake_collector.h"
#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {
namespace {

using rpc::testing::FakeCollector;
using rpc::testing::points_of;
using rpc::testing::senders_of;

// Waits for a request of now in which the workers and the launcher are senders. The next one that arrives may
// have been read earlier.
FakeCollector::Request complete_request(const FakeCollector& collector) {
  for (std::size_t seen = collector.count() + 1;;) {
    const auto requests = collector.wait_for(seen + 1);
    if (requests.size() <= seen) return {};
    for (; seen < requests.size(); ++seen) {
      if (senders_of(requests[seen]).size() == 3) return requests[seen];
    }
  }
}

TEST(LaunchOtlp, WorkersAndLauncherArePushedAsSenders) {
  FakeCollector collector;
  LaunchProcess launch({"--standalone", "--nproc_per_node=2", "--otlp_endpoint=" + collector.endpoint(),
                        "tests/launch/metrics/calling_worker"},
                       {{"OTEL_METRIC_EXPORT_INTERVAL", "100"},
                        {"OTEL_EXPORTER_OTLP_HEADERS", "api-key=hidden"},
                        {"OTEL_EXPORTER_OTLP_INSECURE", "true"},
                        {"OTEL_SERVICE_NAME", "job7"}});
  launch.events(2);
  const FakeCollector::Request request = complete_request(collector);
  ASSERT_FALSE(senders_of(request).empty());
  std::map<std::string, std::string> ranks;
  for (const auto& sender : senders_of(request)) {
    EXPECT_EQ(sender.at("service.name"), "job7");
    if (sender.count("gradwire.rank") != 0)
      ranks[sender.at("service.instance.id")] = sender.at("gradwire.rank");
  }
  EXPECT_EQ(ranks, (std::map<std::string, std::string>{{"default0", "0"}, {"default1", "1"}}));
  const std::vector<std::string> points = points_of(request);
  EXPECT_THAT(points, ::testing::Contains("gradwire_launch_workers{} = 2"));
  EXPECT_TRUE(std::any_of(points.begin(), points.end(), [](const std::string& point) {
    return absl::StartsWith(point, "gradwire_rpc_calls_made_total{worker=default0,") &&
           absl::StrContains(point, "twice") && absl::EndsWith(point, "peer=default1,code=OK} = 10");
  })) << ::testing::PrintToString(points);
  EXPECT_EQ(collector.headers().find("api-key")->second, "hidden");
  launch.send(SIGTERM);
  EXPECT_EQ(launch.wait(), 128 + SIGTERM);
  EXPECT_NE(launch.err().find("pushing the metrics of this node's workers to 127.0.0.1:"), std::string::npos)
      << launch.err();
  EXPECT_EQ(launch.err().find("hidden"), std::string::npos);
}

TEST(LaunchOtlp, MalformedEndpointEndsTheLauncher) {
  LaunchProcess launch({"--standalone", "--otlp_endpoint=collector:4317", "true"});
  EXPECT_EQ(launch.wait(), 2);
  EXPECT_NE(launch.err().find("https://HOST:PORT"), std::string::npos) << launch.err();
}

TEST(LaunchOtlp, JobRunsWithoutACollector) {
  int port = 0;
  { port = FakeCollector().port(); }
  LaunchProcess launch({"--standalone", "--otlp_endpoint=http://127.0.0.1:" + std::to_string(port), "true"});
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_NE(launch.err().find("cannot export the last metrics"), std::string::npos) << launch.err();
}

// The last export would go on for ten minutes.
const std::map<std::string, std::string> kPatient = {{"OTEL_METRIC_EXPORT_INTERVAL", "3600000"},
                                                     {"OTEL_EXPORTER_OTLP_TIMEOUT", "600000"}};

TEST(LaunchOtlp, SignalEndsTheLastExportOfAJobThatIsOver) {
  FakeCollector collector;
  collector.hang();
  LaunchProcess launch({"--standalone", "--otlp_endpoint=" + collector.endpoint(), "true"}, kPatient);
  ASSERT_EQ(collector.wait_for(1).size(), 1u);
  launch.send(SIGINT);
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_NE(launch.err().find("the last metrics"), std::string::npos) << launch.err();
}

TEST(LaunchOtlp, SecondSignalEndsTheLastExport) {
  FakeCollector collector;
  collector.hang();
  LaunchProcess launch(with_script({"--standalone", "--otlp_endpoint=" + collector.endpoint()},
                                   "echo started >&9; exec sleep 1000"),
                       kPatient);
  launch.events(1);
  launch.send(SIGINT);
  ASSERT_EQ(collector.wait_for(1).size(), 1u);
  // The launcher has got the first signal by now. For one second it takes a second one for the same.
  absl::SleepFor(absl::Milliseconds(1'100));
  launch.send(SIGINT);
  EXPECT_EQ(launch.wait(), 128 + SIGINT) << launch.err();
}

}  // namespace
}  // namespace gradwire::tests
