#include "gradwire/rpc/otlp/otlp_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/metrics/families.h"
#include "gradwire/base/metrics/histogram.h"
#include "gradwire/base/metrics/samples.h"

namespace gradwire::rpc {
namespace {

using metrics::Metric;
using metrics::Samples;
using Request = proto::otlp::ExportMetricsServiceRequest;

const absl::Time kSince = absl::FromUnixSeconds(1'000'000'000);
const absl::Time kNow = kSince + absl::Seconds(5);

Request read_one(std::vector<MetricsText> texts) {
  OtlpReader reader(std::move(texts), {{"service.name", "job7"}}, kNow);
  Request request;
  EXPECT_TRUE(reader.next(request));
  Request more;
  EXPECT_FALSE(reader.next(more));
  return request;
}

Request read_one(const std::string& text) {
  return read_one({{.text = text, .since = kSince, .attributes = {}}});
}

metrics::HistogramValues some_values() {
  metrics::HistogramValues values;
  values.counts[0] = 1;
  values.counts[3] = 2;
  values.counts[metrics::kBuckets - 1] = 1;
  values.sum_ns = 70'000'000'000;
  return values;
}

// The messages that the package opentelemetry-proto 1.45.2 for Python, which is generated from the official
// files, makes of the same values.
constexpr char kOfficialRequest[] =
    "0a94070a340a1a0a13736572766963652e696e7374616e63652e696412030a01610a160a0c736572766963652e6e616d"
    "6512060a046a6f623712db060a0a0a0867726164776972651286010a1d67726164776972655f7270635f63616c6c735f"
    "6d6164655f746f74616c1a077b63616c6c737d3a5c0a5611000064a7b3b6e00d1900f269d1b4b6e00d31b40400000000"
    "00003a0d0a06776f726b657212030a01613a0f0a0866756e6374696f6e12030a01663a0b0a047065657212030a01623a"
    "0c0a04636f646512040a024f4b1002180112a8040a1967726164776972655f7270635f63616c6c5f7365636f6e64731a"
    "01734a87040a820411000064a7b3b6e00d1900f269d1b4b6e00d21040000000000000029000000000080514032e00101"
    "000000000000000000000000000000000000000000000002000000000000000000000000000000000000000000000000"
    "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "000000000000000000000000000000000000000000000001000000000000003ad8018dedb5a0f7c6b03e8dedb5a0f7c6"
    "c03e8dedb5a0f7c6d03e8dedb5a0f7c6e03e8dedb5a0f7c6f03e8dedb5a0f7c6003f8dedb5a0f7c6103f8dedb5a0f7c6"
    "203f8dedb5a0f7c6303f8dedb5a0f7c6403f8dedb5a0f7c6503f8dedb5a0f7c6603f8dedb5a0f7c6703f8dedb5a0f7c6"
    "803f8dedb5a0f7c6903f8dedb5a0f7c6a03f8dedb5a0f7c6b03f8dedb5a0f7c6c03f8dedb5a0f7c6d03f8dedb5a0f7c6"
    "e03f8dedb5a0f7c6f03f8dedb5a0f7c600408dedb5a0f7c610408dedb5a0f7c620408dedb5a0f7c630408dedb5a0f7c6"
    "40408dedb5a0f7c650404a0d0a06776f726b657212030a01614a0f0a0866756e6374696f6e12030a01661002124a0a1a"
    "67726164776972655f7270635f70656e64696e675f63616c6c731a077b63616c6c737d2a230a211900f269d1b4b6e00d"
    "2100000000000004403a0d0a06776f726b657212030a0161124d0a1867726164776972655f7270635f72726566735f6f"
    "776e65641a0c7b7265666572656e6365737d2a230a211900f269d1b4b6e00d3103000000000000003a0d0a06776f726b"
    "657212030a0161";
constexpr char kOfficialAnswer[] = "0a06080312026e6f";

TEST(OtlpReader, BytesAreThoseOfTheOfficialMessages) {
  Samples samples({{"worker", "a"}});
  samples.add(Metric::kCallsMade, {"f", "b", "OK"}, uint64_t{1'204});
  samples.add(Metric::kCallSeconds, {"f"}, some_values());
  samples.add(Metric::kPendingCalls, Samples::Values(), 2.5);
  samples.add(Metric::kRRefsOwned, {}, uint64_t{3});
  Request request =
      read_one({{.text = samples.text(), .since = kSince, .attributes = {{"service.instance.id", "a"}}}});
  // These change with the version and with the words of the documentation.
  proto::otlp::ScopeMetrics& scope = *request.mutable_resource_metrics(0)->mutable_scope_metrics(0);
  scope.mutable_scope()->clear_version();
  for (auto& metric : *scope.mutable_metrics()) {
    EXPECT_NE(metric.description(), "");
    metric.clear_description();
  }
  EXPECT_EQ(absl::BytesToHexString(request.SerializeAsString()), kOfficialRequest);

  proto::otlp::ExportMetricsServiceResponse answer;
  ASSERT_TRUE(answer.ParseFromString(absl::HexStringToBytes(kOfficialAnswer)));
  EXPECT_EQ(answer.partial_success().rejected_data_points(), 3);
  EXPECT_EQ(answer.partial_success().error_message(), "no");
}

TEST(OtlpReader, LabelsLoseTheirEscapes) {
  Samples samples({{"worker", "a,b=\"c\"}\n\\"}});
  samples.add(Metric::kLinks, {}, uint64_t{1});
  samples.add(Metric::kCallSeconds, {"f,le=\"1\""}, some_values());
  const Request request = read_one(samples.text());
  const auto& metrics = request.resource_metrics(0).scope_metrics(0).metrics();
  ASSERT_EQ(metrics.size(), 2);
  const auto& seconds = metrics[0].histogram().data_points(0);
  ASSERT_EQ(seconds.attributes_size(), 2);
  EXPECT_EQ(seconds.attributes(1).value().string_value(), "f,le=\"1\"");
  EXPECT_EQ(seconds.count(), 4u);
  EXPECT_EQ(metrics[1].gauge().data_points(0).attributes(0).value().string_value(), "a,b=\"c\"}\n\\");
}

TEST(OtlpReader, EveryFamilyHasItsKindAndUnit) {
  Samples samples;
  for (std::size_t i = 0; i < metrics::kMetrics; ++i) {
    const auto metric = static_cast<Metric>(i);
    const std::vector<absl::string_view> values(metrics::family_of(metric).label_count(), "v");
    if (metrics::family_of(metric).kind == metrics::Kind::kHistogram) {
      samples.add(metric, values, some_values());
    } else {
      samples.add(metric, values, uint64_t{7});
    }
  }
  const Request request = read_one(samples.text());
  const auto& found = request.resource_metrics(0).scope_metrics(0).metrics();
  ASSERT_EQ(static_cast<std::size_t>(found.size()), metrics::kMetrics);
  for (std::size_t i = 0; i < metrics::kMetrics; ++i) {
    const metrics::Family& family = metrics::all_families()[i];
    const auto& metric = found[static_cast<int>(i)];
    EXPECT_EQ(metric.name(), family.name);
    EXPECT_EQ(metric.has_histogram(), family.kind == metrics::Kind::kHistogram) << family.name;
    EXPECT_EQ(metric.has_sum(), family.kind == metrics::Kind::kCounter) << family.name;
    EXPECT_EQ(metric.has_gauge(), family.kind == metrics::Kind::kGauge) << family.name;
    const std::string expected = family.unit == "seconds" ? "s"
                                 : family.unit == "bytes" ? "By"
                                 : family.unit == "1"     ? ""
                                                          : absl::StrCat("{", family.unit, "}");
    EXPECT_EQ(metric.unit(), expected);
  }
}

TEST(OtlpReader, SenderHasTheAttributesOfTheTextAndOfAll) {
  const std::string text = "gradwire_rpc_links 1\n";
  const Request request =
      read_one({{.text = text, .since = kSince, .attributes = {{"a", "1"}, {"service.name", "own"}}},
                {.text = "", .since = kSince, .attributes = {{"nothing", "to send"}}},
                {.text = text, .since = kSince, .attributes = {{"b", "2"}}}});
  ASSERT_EQ(request.resource_metrics_size(), 2);
  std::vector<std::string> attributes;
  for (const auto& resource : request.resource_metrics()) {
    for (const auto& each : resource.resource().attributes())
      attributes.push_back(absl::StrCat(each.key(), "=", each.value().string_value()));
    ASSERT_EQ(resource.scope_metrics_size(), 1);
    EXPECT_EQ(resource.scope_metrics(0).metrics_size(), 1);
  }
  EXPECT_THAT(attributes, ::testing::ElementsAre("a=1", "service.name=own", "b=2", "service.name=job7"));
}

TEST(OtlpReader, NothingToSendIsNoRequest) {
  for (const char* text : {"", "\n", "# HELP a b\n", "unknown 1\n"}) {
    OtlpReader reader({{.text = text, .since = kSince, .attributes = {}}}, {}, kNow);
    Request request;
    EXPECT_FALSE(reader.next(request)) << text;
  }
  OtlpReader reader({}, {}, kNow);
  Request request;
  EXPECT_FALSE(reader.next(request));
}

TEST(OtlpReader, LargeTextsBecomeSeveralRequestsWithoutLoss) {
  constexpr std::size_t kMost = 2'000;
  std::vector<MetricsText> texts;
  for (int worker = 0; worker < 3; ++worker) {
    Samples samples({{"worker", absl::StrCat(worker)}});
    for (int i = 0; i < 50; ++i) {
      samples.add(Metric::kTableEntries, {absl::StrCat("t", i)}, static_cast<uint64_t>(i));
      samples.add(Metric::kCallSeconds, {absl::StrCat("f", i)}, some_values());
    }
    texts.push_back({.text = samples.text(), .since = kSince, .attributes = {}});
  }
  OtlpReader reader(texts, {{"service.name", "job7"}}, kNow, kMost);
  Request request;
  std::multiset<std::string> points;
  int requests = 0;
  while (reader.next(request)) {
    ++requests;
    // The limit, and one more data point.
    EXPECT_LT(request.ByteSizeLong(), kMost + 1'000);
    ASSERT_GT(request.resource_metrics_size(), 0);
    for (const auto& resource : request.resource_metrics()) {
      EXPECT_EQ(resource.resource().attributes_size(), 1);
      for (const auto& metric : resource.scope_metrics(0).metrics()) {
        for (const auto& point : metric.gauge().data_points()) {
          points.insert(absl::StrCat(point.attributes(0).value().string_value(), " ",
                                     point.attributes(1).value().string_value(), " ", point.as_int()));
        }
        for (const auto& point : metric.histogram().data_points()) {
          points.insert(absl::StrCat(point.attributes(0).value().string_value(), " ",
                                     point.attributes(1).value().string_value(), " ", point.count()));
        }
      }
    }
  }
  EXPECT_GT(requests, 10);
  std::multiset<std::string> expected;
  for (int worker = 0; worker < 3; ++worker) {
    for (int i = 0; i < 50; ++i) {
      expected.insert(absl::StrCat(worker, " t", i, " ", i));
      expected.insert(absl::StrCat(worker, " f", i, " 4"));
    }
  }
  EXPECT_EQ(points, expected);
}

// A text may come from another process.
TEST(OtlpReader, MalformedSamplesAreLeftOut) {
  const std::string bucket = "gradwire_rpc_call_seconds_bucket";
  const std::string rest = "gradwire_rpc_call_seconds_sum 1\ngradwire_rpc_call_seconds_count 3\n";
  for (const std::string& text : {
           std::string("gradwire_rpc_links one\n"),
           std::string("gradwire_rpc_links{a=\"\xff\"} 1\n"),
           std::string("gradwire_rpc_bytes_sent_total -1\n"),
           std::string("gradwire_rpc_bytes_sent_total -1.5\n"),
           rest,
           bucket + " 3\n" + rest,
           bucket + "{le=\"1\"} 3\n" + rest,
           bucket + "{le=\"one\"} 1\n" + bucket + "{le=\"+Inf\"} 3x\n" + rest,
           bucket + "{le=\"nan\"} 1\n" + bucket + "{le=\"+Inf\"} 3\n" + rest.substr(0, rest.find('\n') + 1),
           bucket + "{le=\"-Inf\"} 1\n" + bucket + "{le=\"+Inf\"} 3\n" + rest,
           bucket + "{le=\"2\"} 1\n" + bucket + "{le=\"1\"} 2\n" + rest,
           bucket + "{le=\"1\"} 2\n" + bucket + "{le=\"+Inf\"} 1\n" + rest,
           bucket + "{le=\"1\"} 2\n" + bucket + "{le=\"+Inf\"} 4\n" + rest,
           bucket + "{le=\"1\"} 1.5\n" + rest,
           bucket + "{le=\"+Inf\"} 3\n" + bucket + "{le=\"5\"} 3\n" + rest,
           bucket + "{le=\"+Inf\",function=\"f\"} 3\n" + rest,
           bucket + "{function=\"f\",le=\"+Inf\"} 3\n" + rest,
       }) {
    OtlpReader reader({{.text = text, .since = kSince, .attributes = {}}}, {}, kNow);
    Request request;
    EXPECT_FALSE(reader.next(request)) << text;
  }
}

TEST(OtlpReader, BucketsAreBounded) {
  std::string text;
  for (int i = 1; i <= 100'000; ++i)
    absl::StrAppend(&text, "gradwire_rpc_call_seconds_bucket{le=\"", i, "\"} 1\n");
  absl::StrAppend(&text, "gradwire_rpc_call_seconds_bucket{le=\"+Inf\"} 1\n",
                  "gradwire_rpc_call_seconds_sum 1\ngradwire_rpc_call_seconds_count 1\n");
  OtlpReader reader({{.text = text, .since = kSince, .attributes = {}}}, {}, kNow);
  Request request;
  while (reader.next(request)) {
    EXPECT_LT(request.resource_metrics(0)
                  .scope_metrics(0)
                  .metrics(0)
                  .histogram()
                  .data_points(0)
                  .explicit_bounds_size(),
              101);
  }
}

TEST(OtlpReader, LabelsAreFound) {
  EXPECT_EQ(label_in("worker=\"a\\\"b\",function=\"f\"", "worker"), "a\"b");
  EXPECT_EQ(label_in("worker=\"a\",function=\"f\"", "function"), "f");
  EXPECT_EQ(label_in("worker=\"function=\"", "function"), std::nullopt);
  EXPECT_EQ(label_in("", "worker"), std::nullopt);
  EXPECT_EQ(
      first_label_in("# HELP x\n\ngradwire_rpc_links 1\ngradwire_rpc_links{worker=\"w\"} 1\n", "worker"),
      "w");
  EXPECT_EQ(first_label_in("gradwire_rpc_links 1\n", "worker"), std::nullopt);
}

}  // namespace
}  // namespace gradwire::rpc
