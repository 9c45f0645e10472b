#include "gradwire/rpc/otlp/metrics_exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gradwire/base/metrics/families.h"
#include "gradwire/base/metrics/registry.h"
#include "gradwire/base/metrics/samples.h"
#include "gradwire/rpc/otlp/testing/fake_collector.h"
#include "gradwire/security/testing/certificates.h"

// Exporters and collectors in one process, over gRPC.
namespace gradwire::rpc {
namespace {

using metrics::Metric;
using ::testing::Contains;
using testing::FakeCollector;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::points_of;
using testing::senders_of;

constexpr absl::Duration kShort = absl::Milliseconds(20);
// No export happens in between, except the last one.
constexpr absl::Duration kLong = absl::Hours(1);

// The metrics of a test: a counter, which each export finds one larger.
struct Job {
  explicit Job(const OtlpOptions& given) {
    OtlpOptions options = given;
    if (!options.interval.has_value()) options.interval = kShort;
    absl::StatusOr<CollectorOptions> resolved = resolve(options, [](const char*) { return std::string(); });
    EXPECT_TRUE(resolved.ok()) << resolved.status();
    exporter = std::make_unique<MetricsExporter>(MetricsExporter::Setup{
        .options = *std::move(resolved),
        .source =
            [this] {
              registry->counter(Metric::kCallsRepeated).add();
              metrics::Samples samples({{"worker", "a"}});
              registry->collect(samples);
              return std::vector<MetricsText>{{.text = samples.text(), .since = since, .attributes = {}}};
            },
        .registry = registry,
        .worker = "a"});
  }
  uint64_t exports(const char* result) const {
    return registry->counter(Metric::kOtlpExports, {result}).value();
  }

  const absl::Time since = absl::Now();
  std::shared_ptr<metrics::Registry> registry = std::make_shared<metrics::Registry>();
  std::unique_ptr<MetricsExporter> exporter;
};

// The value of the counter in a request; 0 if it is not there.
int64_t value_in(const FakeCollector::Request& request) {
  for (const std::string& point : points_of(request)) {
    const std::vector<std::string> parts = absl::StrSplit(point, "{worker=a} = ");
    int64_t value = 0;
    if (parts[0] == "gradwire_rpc_calls_repeated_total" && absl::SimpleAtoi(parts.at(1), &value))
      return value;
  }
  return 0;
}

TEST(MetricsExporter, PushesInIntervalsAndALastTime) {
  FakeCollector collector;
  Job job({.endpoint = collector.endpoint(), .service_name = "job7", .attributes = {{"zone", "b"}}});
  const auto some = collector.wait_for(3);
  ASSERT_GE(some.size(), 3u);
  job.exporter->stop();
  job.exporter->stop();
  const auto all = collector.wait_for(0);
  int64_t last = 0;
  for (const auto& request : all) {
    EXPECT_EQ(value_in(request), last + 1);
    last = value_in(request);
    ASSERT_EQ(request.resource_metrics_size(), 1);
    const auto& resource = request.resource_metrics(0);
    ASSERT_EQ(senders_of(request).size(), 1u);
    EXPECT_EQ(senders_of(request)[0].at("service.name"), "job7");
    EXPECT_EQ(senders_of(request)[0].at("zone"), "b");
    EXPECT_EQ(resource.scope_metrics(0).scope().name(), "gradwire");
    for (const auto& metric : resource.scope_metrics(0).metrics()) {
      ASSERT_TRUE(metric.has_sum()) << metric.name();
      EXPECT_TRUE(metric.sum().is_monotonic());
      EXPECT_EQ(metric.sum().temporality(), proto::otlp::TEMPORALITY_CUMULATIVE);
      for (const auto& point : metric.sum().data_points()) {
        EXPECT_EQ(point.start_time_unix_nano(), static_cast<uint64_t>(absl::ToUnixNanos(job.since)));
        EXPECT_GE(point.time_unix_nano(), point.start_time_unix_nano());
      }
    }
  }
  // stop() may have ended one in progress.
  EXPECT_GE(job.exports("ok") + 1, all.size());
  EXPECT_LE(job.exports("ok"), all.size());
  EXPECT_EQ(job.exports("failed"), 0u);
  // Nothing comes after the end.
  EXPECT_EQ(collector.count(), all.size());
}

TEST(MetricsExporter, StopExportsWithoutWaitingForTheInterval) {
  FakeCollector collector;
  Job job({.endpoint = collector.endpoint(), .interval = kLong});
  job.exporter->stop();
  EXPECT_EQ(job.exports("ok"), collector.count());
  EXPECT_GE(collector.count(), 1u);
}

TEST(MetricsExporter, HeadersAreSentWithEveryRequest) {
  FakeCollector collector;
  absl::StatusOr<CollectorOptions> options =
      resolve({.endpoint = collector.endpoint(), .interval = kLong, .insecure = true}, [](const char* name) {
        return std::string(name) == "OTEL_EXPORTER_OTLP_HEADERS" ? "Api-Key=a%2Cb,x=y" : "";
      });
  ASSERT_TRUE(options.ok()) << options.status();
  MetricsExporter exporter({.options = *std::move(options), .source = [] {
                              return std::vector<MetricsText>{{"gradwire_rpc_links 1\n", absl::Now(), {}}};
                            }});
  exporter.stop();
  const auto headers = collector.headers();
  EXPECT_EQ(headers.find("api-key")->second, "a,b");
  EXPECT_EQ(headers.find("x")->second, "y");
}

TEST(MetricsExporter, AbsentCollectorIsLoggedOnceAndFoundWhenItComes) {
  int port = 0;
  { port = FakeCollector().port(); }
  ::testing::internal::CaptureStderr();
  Job job({.endpoint = absl::StrCat("http://127.0.0.1:", port), .interval = absl::Milliseconds(10)});
  while (job.exports("failed") < 3) std::this_thread::yield();
  FakeCollector collector({.port = port, .certificate = {}, .key = {}});
  const auto requests = collector.wait_for(1);
  job.exporter->stop();
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_FALSE(requests.empty());
  // Nothing is lost: the counter has counted all the time.
  EXPECT_GT(value_in(requests[0]), 3);
  EXPECT_THAT(log, HasSubstr(absl::StrCat("127.0.0.1:", port)));
  EXPECT_THAT(log, HasSubstr("UNAVAILABLE"));
  const std::vector<std::string> warnings = absl::StrSplit(log, "cannot export");
  EXPECT_EQ(warnings.size(), 2u) << log;
}

TEST(MetricsExporter, RefusalsAreCountedAndTheKeyIsNotLogged) {
  FakeCollector collector;
  collector.answer_with([](const auto& request, auto& response) {
    return absl::UnauthenticatedError(
        absl::StrCat("wrong key in \"Bearer hidden-key\": hidden-key\n", std::string(2'000, 'x')));
  });
  ::testing::internal::CaptureStderr();
  absl::StatusOr<CollectorOptions> options =
      resolve({.endpoint = collector.endpoint(), .interval = kShort, .insecure = true}, [](const char* name) {
        return std::string(name) == "OTEL_EXPORTER_OTLP_HEADERS" ? "authorization=Bearer%20hidden-key" : "";
      });
  ASSERT_TRUE(options.ok()) << options.status();
  auto registry = std::make_shared<metrics::Registry>();
  MetricsExporter exporter(
      {.options = *std::move(options),
       .source =
           [] {
             return std::vector<MetricsText>{{"gradwire_rpc_links 1\n", absl::Now(), {}}};
           },
       .registry = registry});
  collector.wait_for(2);
  exporter.stop();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(collector.headers().find("authorization")->second, "Bearer hidden-key");
  EXPECT_THAT(log, HasSubstr("UNAUTHENTICATED"));
  EXPECT_THAT(log, HasSubstr("***"));
  EXPECT_THAT(log, Not(HasSubstr("hidden-key")));
  EXPECT_LT(log.size(), 1'000u);
  EXPECT_GE(registry->counter(Metric::kOtlpExports, {"failed"}).value() + 1, collector.count());
}

TEST(MetricsExporter, RejectedPointsAreCountedAndExportsGoOn) {
  FakeCollector collector;
  collector.answer_with([](const auto& request, auto& response) {
    response.mutable_partial_success()->set_rejected_data_points(2);
    response.mutable_partial_success()->set_error_message("too old");
    return absl::OkStatus();
  });
  ::testing::internal::CaptureStderr();
  Job job({.endpoint = collector.endpoint()});
  collector.wait_for(3);
  job.exporter->stop();
  const std::string log = ::testing::internal::GetCapturedStderr();
  // stop() may have ended one export in progress.
  EXPECT_GE(job.exports("partial") + 1, collector.count());
  EXPECT_EQ(job.registry->counter(Metric::kOtlpRejectedPoints).value(), 2 * job.exports("partial"));
  EXPECT_THAT(log, HasSubstr("rejected 2 values: too old"));
  const std::vector<std::string> warnings = absl::StrSplit(log, "rejected 2 values");
  EXPECT_EQ(warnings.size(), 2u) << log;
}

// A hint, or a nonsensical number, is not a rejection.
TEST(MetricsExporter, HintsAreNotRejections) {
  FakeCollector collector;
  collector.answer_with([](const auto& request, auto& response) {
    response.mutable_partial_success()->set_rejected_data_points(-5);
    response.mutable_partial_success()->set_error_message("use another unit");
    return absl::OkStatus();
  });
  Job job({.endpoint = collector.endpoint(), .interval = kLong});
  job.exporter->stop();
  EXPECT_EQ(job.exports("ok"), collector.count());
  EXPECT_EQ(job.registry->counter(Metric::kOtlpRejectedPoints).value(), 0u);
}

TEST(MetricsExporter, AnswersAreBounded) {
  FakeCollector collector;
  collector.answer_with([](const auto& request, auto& response) {
    response.mutable_partial_success()->set_error_message(std::string(1 << 20, 'x'));
    return absl::OkStatus();
  });
  Job job({.endpoint = collector.endpoint(), .interval = kLong});
  job.exporter->stop();
  EXPECT_EQ(job.exports("failed"), collector.count());
}

TEST(MetricsExporter, SlowCollectorEndsAtTheTimeout) {
  FakeCollector collector;
  collector.hang();
  Job job({.endpoint = collector.endpoint(), .timeout = absl::Milliseconds(50)});
  collector.wait_for(2);
  job.exporter->stop();
  EXPECT_GE(job.exports("failed"), 1u);
  EXPECT_EQ(job.exports("ok"), 0u);
}

// stop() ends the export in progress, whose timeout is an hour, and the last one ends at its own timeout. The
// wrong behaviour would wait for the first one.
TEST(MetricsExporter, StopEndsAnExportThatHangs) {
  FakeCollector collector;
  collector.hang();
  Job hanging({.endpoint = collector.endpoint(), .interval = kShort, .timeout = absl::Hours(1)});
  collector.wait_for(1);
  std::thread stopper([&] { hanging.exporter->stop(); });
  // The last export: the request that came after the first one was cancelled.
  collector.wait_for(2);
  collector.release();
  stopper.join();
  EXPECT_EQ(hanging.exports("ok"), 1u);
  EXPECT_EQ(hanging.exports("failed"), 0u);
}

TEST(MetricsExporter, StopReturnsAfterTheTimeoutWhileTheCollectorHangs) {
  FakeCollector collector;
  collector.hang();
  Job job({.endpoint = collector.endpoint(), .interval = kLong, .timeout = absl::Milliseconds(100)});
  job.exporter->stop();
  EXPECT_GE(job.exports("failed"), 1u);
}

// With the timeout of an hour the wrong behaviour would wait for it.
TEST(MetricsExporter, AbandonEndsTheLastExport) {
  FakeCollector collector;
  collector.hang();
  Job job({.endpoint = collector.endpoint(), .interval = kLong, .timeout = absl::Hours(1)});
  EXPECT_FALSE(job.exporter->stop_within(absl::ZeroDuration()));
  EXPECT_EQ(collector.wait_for(1).size(), 1u);
  EXPECT_FALSE(job.exporter->stop_within(absl::Milliseconds(1)));
  ::testing::internal::CaptureStderr();
  job.exporter->abandon();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("cannot export the last metrics"));
  EXPECT_TRUE(job.exporter->stop_within(absl::ZeroDuration()));
  job.exporter->abandon();
  EXPECT_EQ(job.exports("failed"), 1u);
  EXPECT_EQ(job.exports("ok"), 0u);
}

TEST(MetricsExporter, AbandonEndsAnExportInProgress) {
  FakeCollector collector;
  collector.hang();
  Job job({.endpoint = collector.endpoint(), .interval = kShort, .timeout = absl::Hours(1)});
  collector.wait_for(1);
  job.exporter->abandon();
  EXPECT_EQ(job.exports("ok"), 0u);
  EXPECT_EQ(job.exports("failed"), 1u);
}

TEST(MetricsExporter, SeveralThreadsMayStopIt) {
  FakeCollector collector;
  Job job({.endpoint = collector.endpoint(), .interval = kLong});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { job.exporter->stop(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(job.exports("ok"), collector.count());
}

TEST(MetricsExporter, LargeExportsAreSeveralRequests) {
  FakeCollector collector;
  std::string text;
  for (int i = 0; i < 40'000; ++i)
    absl::StrAppend(&text, "gradwire_rpc_table_entries{table=\"", i, "\"} ", i, "\n");
  absl::StatusOr<CollectorOptions> options = resolve({.endpoint = collector.endpoint(), .interval = kLong},
                                                     [](const char*) { return std::string(); });
  ASSERT_TRUE(options.ok()) << options.status();
  MetricsExporter exporter({.options = *std::move(options), .source = [&text] {
                              return std::vector<MetricsText>{{text, absl::Now(), {}}};
                            }});
  exporter.stop();
  std::size_t points = 0;
  for (const auto& request : collector.wait_for(2)) points += points_of(request).size();
  EXPECT_GE(points, 40'000u);
  EXPECT_EQ(points % 40'000, 0u);
}

TEST(MetricsExporterTls, OnlyACollectorWithTheRightCertificateGetsMetrics) {
  const security::TestAuthority authority;
  const security::TestAuthority stranger("Stranger");
  const auto issued = authority.issue({.addresses = {"127.0.0.1"}});
  const std::string trusted = authority.write_file(authority.pem());
  FakeCollector collector({.port = 0, .certificate = issued.certificate, .key = issued.key});
  {
    Job job({.endpoint = collector.endpoint(), .interval = kLong, .certificate_file = trusted});
    job.exporter->stop();
    EXPECT_GE(job.exports("ok"), 1u);
    EXPECT_EQ(collector.count(), job.exports("ok"));
  }
  const std::size_t before = collector.count();
  ::testing::internal::CaptureStderr();
  {
    Job job({.endpoint = collector.endpoint(),
             .interval = kLong,
             .certificate_file = stranger.write_file(stranger.pem())});
    job.exporter->stop();
    EXPECT_GE(job.exports("failed"), 1u);
    EXPECT_EQ(job.exports("ok"), 0u);
  }
  {
    // The right authority, but a certificate for another host.
    const auto other = authority.issue({.addresses = {"127.0.0.2"}});
    FakeCollector impostor({.port = 0, .certificate = other.certificate, .key = other.key});
    Job job({.endpoint = impostor.endpoint(), .interval = kLong, .certificate_file = trusted});
    job.exporter->stop();
    EXPECT_EQ(impostor.count(), 0u);
    EXPECT_GE(job.exports("failed"), 1u);
  }
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(collector.count(), before);
}

}  // namespace
}  // namespace gradwire::rpc
