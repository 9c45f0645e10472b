#include "gradwire/tools/launch/metrics/job_export.h"

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gradwire/base/metrics/registry.h"
#include "gradwire/base/metrics/samples.h"
#include "gradwire/rpc/otlp/testing/fake_collector.h"
#include "gradwire/tools/launch/io/loop.h"
#include "gradwire/transport/http/http_server.h"
#include "gtest/gtest.h"

namespace gradwire::tools {
namespace {

using rpc::testing::FakeCollector;
using ::testing::Contains;

// A worker as the launcher sees it.
std::unique_ptr<transport::HttpServer> worker(JobMetrics& job, int rank, const std::string& text) {
  JobMetrics::Variables variables;
  EXPECT_TRUE(job.add_worker(rank, rank, variables).ok());
  auto server = transport::HttpServer::start({.address = variables.at(0).second},
                                             {{"/metrics", {.make = [text] { return text; }}}});
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

std::string links(const std::string& name, uint64_t count) {
  metrics::Samples samples({{"worker", name}});
  samples.add(metrics::Metric::kLinks, {}, count);
  samples.add(metrics::Metric::kBytesSent, {}, count);
  return samples.text();
}

void end(JobExport& exported) {
  absl::StatusOr<FdLoop> loop = FdLoop::create();
  ASSERT_TRUE(loop.ok()) << loop.status();
  exported.end(*loop, [] { return false; });
}

TEST(JobExport, EachWorkerAndTheLauncherAreSenders) {
  FakeCollector collector;
  auto job = JobMetrics::create({.exported = true});
  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_TRUE(job->serve().ok());
  EXPECT_EQ(job->address(), "");
  const absl::Time round = absl::Now();
  job->begin_round(3, 1);
  const auto a = worker(*job, 0, links("a", 1));
  const auto b = worker(*job, 1, links("b", 2));
  const auto c = worker(*job, 2, "gradwire_rpc_links 3\nnonsense\n");
  auto exported = JobExport::start(collector.endpoint(), "job7", "host1", *job);
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_EQ((*exported)->address(), absl::StrCat("127.0.0.1:", collector.port()));
  end(**exported);
  const FakeCollector::Request request = collector.wait_for(1).back();
  EXPECT_THAT(rpc::testing::points_of(request),
              ::testing::IsSupersetOf({"gradwire_rpc_links{worker=a} = 1", "gradwire_rpc_links{worker=b} = 2",
                                       "gradwire_rpc_links{} = 3", "gradwire_launch_workers{} = 3",
                                       "gradwire_launch_restarts_total{} = 1",
                                       "gradwire_launch_rounds_total{} = 1"}));
  std::map<std::string, std::string> ranks;
  for (const auto& sender : rpc::testing::senders_of(request)) {
    EXPECT_EQ(sender.at("service.name"), "job7");
    ranks[sender.at("service.instance.id")] =
        sender.count("gradwire.rank") == 0 ? "" : sender.at("gradwire.rank");
  }
  EXPECT_EQ(ranks, (std::map<std::string, std::string>{
                       {"a", "0"}, {"b", "1"}, {"rank 2", "2"}, {"launch host1", ""}}));
  // The counters of workers begin with the round, so that a restart is not taken for a decrease.
  for (const auto& resource : request.resource_metrics()) {
    for (const auto& metric : resource.scope_metrics(0).metrics()) {
      for (const auto& point : metric.sum().data_points()) {
        const absl::Time since = absl::FromUnixNanos(static_cast<int64_t>(point.start_time_unix_nano()));
        EXPECT_EQ(since >= round, metric.name() == "gradwire_rpc_bytes_sent_total") << metric.name();
      }
    }
  }
}

TEST(JobExport, FailuresAreAmongTheMetricsOfTheLauncher) {
  auto job = JobMetrics::create({.exported = true});
  ASSERT_TRUE(job.ok()) << job.status();
  int port = 0;
  { port = FakeCollector().port(); }
  auto exported = JobExport::start(absl::StrCat("http://127.0.0.1:", port), "job7", "host1", *job);
  ASSERT_TRUE(exported.ok()) << exported.status();
  end(**exported);
  EXPECT_THAT(job->text(), ::testing::HasSubstr("gradwire_otlp_exports_total{result=\"failed\"} "));
}

// The timeout of an export is ten seconds, and the collector never answers.
TEST(JobExport, LastExportEndsWhenItIsStopped) {
  FakeCollector collector;
  collector.hang();
  auto job = JobMetrics::create({.exported = true});
  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_TRUE(job->serve().ok());
  auto exported = JobExport::start(collector.endpoint(), "job7", "host1", *job);
  ASSERT_TRUE(exported.ok()) << exported.status();
  absl::StatusOr<FdLoop> loop = FdLoop::create();
  ASSERT_TRUE(loop.ok()) << loop.status();
  (*exported)->end(*loop, [&] { return collector.count() > 0; });
  EXPECT_EQ(job->registry()->counter(metrics::Metric::kOtlpExports, {"failed"}).value(), 1u);
}

TEST(JobExport, NothingIsPushedWithoutAnEndpoint) {
  auto job = JobMetrics::create({});
  ASSERT_TRUE(job.ok()) << job.status();
  const auto exported = JobExport::start("", "job7", "host1", *job);
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_EQ(*exported, nullptr);
}

TEST(JobExport, MalformedEndpointIsAnError) {
  auto job = JobMetrics::create({.exported = true});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(JobExport::start("collector", "job7", "host1", *job).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::tools
