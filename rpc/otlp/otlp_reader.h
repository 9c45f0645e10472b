#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/metrics/samples.h"
#include "gradwire/proto/otlp.pb.h"
#include "gradwire/rpc/otlp/metrics_text.h"

namespace gradwire::rpc {

// Turns the text of metrics into OTLP's messages, one request after the other, so that the memory for
// messages is bounded however many series there are:
//
//   OtlpReader reader(texts, attributes, absl::Now());
//   proto::otlp::ExportMetricsServiceRequest request;
//   while (reader.next(request)) ...
//
// A counter becomes a monotonic, cumulative Sum, a gauge a Gauge, and a histogram a Histogram. Samples that
// are malformed or not in the table of metrics are left out: a text may come from another process. Not
// thread-safe.
class OtlpReader {
 public:
  // A collector accepts messages of 4 MiB, unless it is configured otherwise.
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;

  // `attributes`: those of all texts. `now`: the wall-clock time at which the texts were made. A request gets
  // no more data points when it has `most_bytes`.
  OtlpReader(std::vector<MetricsText> texts, std::map<std::string, std::string> attributes, absl::Time now,
             std::size_t most_bytes = kMostBytes);

  // Fills the next request, with at least one data point. False at the end.
  bool next(proto::otlp::ExportMetricsServiceRequest& request);

 private:
  // The lines of a histogram's series that were read: its buckets, and then its sum.
  struct Series {
    metrics::Metric metric = metrics::Metric::kCount;
    // Without the bound.
    absl::string_view labels;
    std::vector<double> bounds;
    // Number of values up to each bound, and then of all.
    std::vector<uint64_t> below;
    bool malformed = false;
    bool complete = false;
    std::optional<double> sum;
  };

  // The next line of the present text; false at its end.
  bool take_line(absl::string_view& line);
  void read_line(absl::string_view line, proto::otlp::ExportMetricsServiceRequest& request);
  void add_number(const metrics::SampleLine& sample, proto::otlp::ExportMetricsServiceRequest& request);
  void add_bucket(const metrics::SampleLine& sample);
  void add_histogram(const metrics::SampleLine& sample, proto::otlp::ExportMetricsServiceRequest& request);
  // The message of a family in the request, which is made if it is not the last one there.
  proto::otlp::Metric& metric_in(proto::otlp::ExportMetricsServiceRequest& request, metrics::Metric metric);

  const std::vector<MetricsText> texts_;
  const std::map<std::string, std::string> attributes_;
  const uint64_t now_ns_;
  const std::size_t most_bytes_;

  // The present text, and the part of it that was not read yet.
  std::size_t text_ = 0;
  absl::string_view rest_;
  Series series_;
  // The bytes of the data points in the present request.
  std::size_t bytes_ = 0;
  // Whether the request has a message for the present text, and the family of its last metric.
  bool has_text_ = false;
  metrics::Metric last_ = metrics::Metric::kCount;
};

// The value of a label in the labels of a sample (SampleLine::labels), without escapes. nullopt without such
// a label.
std::optional<std::string> label_in(absl::string_view labels, absl::string_view name);
// The value of a label in the first sample of a text that has it. nullopt if no sample has it.
std::optional<std::string> first_label_in(absl::string_view text, absl::string_view name);

}  // namespace gradwire::rpc
