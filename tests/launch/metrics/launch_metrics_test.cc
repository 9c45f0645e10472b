// The metrics of a job from its launcher.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gradwire/base/metrics/testing/strict_text.h"
#include "gradwire/tests/launch/launch_process.h"
#include "gradwire/transport/http/testing/http_client.h"

namespace gradwire::tests {
namespace {

using metrics::testing::TextFamilies;

// The address that the launcher has printed.
std::string address_in(const std::string& text) {
  constexpr char kBefore[] = "serving the metrics of this node's workers at ";
  const std::size_t at = text.find(kBefore);
  if (at == std::string::npos) return "";
  const std::string rest = text.substr(at + sizeof(kBefore) - 1);
  return rest.substr(0, rest.find('\n'));
}

TextFamilies read(const std::string& address) {
  const auto answer = transport::testing::http_get(address, "/metrics");
  EXPECT_EQ(answer.status, 200);
  auto families = metrics::testing::parse_strictly(answer.body);
  EXPECT_TRUE(families.ok()) << families.status() << "\n" << answer.body;
  return families.ok() ? *families : TextFamilies();
}

TEST(LaunchMetrics, JobIsReadInOnePlaceAlsoAfterARestart) {
  LaunchProcess launch({"--standalone", "--nproc_per_node=2", "--max_restarts=1",
                        "--metrics_address=127.0.0.1:0", "tests/launch/metrics/calling_worker"});
  const std::vector<std::string> first = launch.events(2);
  const std::string address = address_in(launch.err());
  ASSERT_NE(address, "") << launch.err();
  {
    const TextFamilies families = read(address);
    const auto& made = families.at("gradwire_rpc_calls_made_total");
    double calls = 0;
    for (const auto& sample : made.samples) {
      const std::string& function = sample.labels.at("function");
      if (function.find("twice") == std::string::npos) continue;
      EXPECT_EQ(sample.labels.at("rank"), "0");
      EXPECT_EQ(sample.labels.at("worker"), "default0");
      EXPECT_EQ(sample.labels.at("peer"), "default1");
      calls += sample.value;
    }
    EXPECT_EQ(calls, 10);
    EXPECT_EQ(families.at("gradwire_agent_info").value({{"rank", "1"}, {"worker", "default1"}}), 1);
    EXPECT_EQ(families.at("gradwire_launch_workers").value({}), 2);
    EXPECT_EQ(families.at("gradwire_launch_restarts_total").value({}), 0);
  }
  const std::vector<std::string> fields = absl::StrSplit(first[0], ' ');
  kill(std::atoi(fields.at(2).c_str()), SIGKILL);
  launch.events(2);
  const TextFamilies families = read(address);
  EXPECT_EQ(families.at("gradwire_launch_restarts_total").value({}), 1);
  EXPECT_EQ(families.at("gradwire_launch_rounds_total").value({}), 2);
  // Only the workers of this round.
  EXPECT_EQ(families.at("gradwire_agent_info").samples.size(), 2u);
  launch.send(SIGTERM);
  EXPECT_EQ(launch.wait(), 128 + SIGTERM);
}

TEST(LaunchMetrics, OtherHostsNeedConsent) {
  LaunchProcess launch({"--standalone", "--metrics_address=0.0.0.0:0", "true"});
  EXPECT_EQ(launch.wait(), 1);
  EXPECT_NE(launch.err().find("--metrics_insecure"), std::string::npos) << launch.err();
}

}  // namespace
}  // namespace gradwire::tests
