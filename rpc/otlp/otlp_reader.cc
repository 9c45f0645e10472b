#include "gradwire/rpc/otlp/otlp_reader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/base/version.h"

namespace gradwire::rpc {
namespace {

using metrics::Family;
using metrics::Kind;
using metrics::SampleLine;
using proto::otlp::ExportMetricsServiceRequest;

// Bounds of a histogram. Those of Gradwire have fewer.
constexpr std::size_t kMostBounds = 100;
// Bytes that a message adds around a data point or a metric: its tag and its length.
constexpr std::size_t kFraming = 8;
// Labels are names. A longer one would make a message that the collector refuses, with all that is in it.
constexpr std::size_t kMaxLabelBytes = 8'192;

uint64_t nanoseconds(absl::Time time) {
  return static_cast<uint64_t>(std::max<int64_t>(0, absl::ToUnixNanos(time)));
}

// The name of a unit by UCUM. A value without a unit has none: collectors take a gauge with the unit "1" for
// a ratio, and rename it for Prometheus.
std::string unit_of(absl::string_view unit) {
  if (unit == "seconds") return "s";
  if (unit == "bytes") return "By";
  return unit == "1" ? "" : absl::StrCat("{", unit, "}");
}

// Takes the next label from `labels`, which parse_sample() has checked.
bool take_label(absl::string_view& labels, absl::string_view& name, std::string& value) {
  const std::size_t equals = labels.find("=\"");
  if (equals == absl::string_view::npos) return false;
  name = labels.substr(0, equals);
  labels.remove_prefix(equals + 2);
  value.clear();
  while (!labels.empty() && labels[0] != '"') {
    if (labels[0] == '\\' && labels.size() > 1) {
      labels.remove_prefix(1);
      value += labels[0] == 'n' ? '\n' : labels[0];
    } else {
      value += labels[0];
    }
    labels.remove_prefix(1);
  }
  absl::ConsumePrefix(&labels, "\"");
  absl::ConsumePrefix(&labels, ",");
  return true;
}

void set_text(proto::otlp::KeyValue& attribute, absl::string_view name, absl::string_view value) {
  attribute.set_key(std::string(name));
  attribute.mutable_value()->set_string_value(std::string(value));
}

template <class Point>
void add_labels(absl::string_view labels, Point& point) {
  absl::string_view name;
  std::string value;
  while (take_label(labels, name, value)) set_text(*point.add_attributes(), name, value);
}

// Takes the bound, the last label, from the labels of a bucket.
bool take_bound(absl::string_view& labels, double& bound) {
  constexpr absl::string_view kName = "le=\"";
  const std::size_t at = labels.rfind(kName);
  if (at == absl::string_view::npos || (at != 0 && labels[at - 1] != ',')) return false;
  absl::string_view text = labels.substr(at + kName.size());
  if (!absl::ConsumeSuffix(&text, "\"")) return false;
  labels = labels.substr(0, at == 0 ? 0 : at - 1);
  return absl::SimpleAtod(text, &bound);
}

}  // namespace

std::optional<std::string> label_in(absl::string_view labels, absl::string_view name) {
  absl::string_view found;
  std::string value;
  while (take_label(labels, found, value)) {
    if (found == name) return value;
  }
  return std::nullopt;
}

std::optional<std::string> first_label_in(absl::string_view text, absl::string_view name) {
  while (!text.empty()) {
    const absl::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    bool known = false;
    const std::optional<SampleLine> sample = metrics::parse_sample(line, known);
    if (!sample.has_value()) continue;
    if (std::optional<std::string> value = label_in(sample->labels, name)) return value;
  }
  return std::nullopt;
}

OtlpReader::OtlpReader(std::vector<MetricsText> texts, std::map<std::string, std::string> attributes,
                       absl::Time now, std::size_t most_bytes)
    : texts_(std::move(texts)),
      attributes_(std::move(attributes)),
      now_ns_(nanoseconds(now)),
      most_bytes_(most_bytes) {
  if (!texts_.empty()) rest_ = texts_[0].text;
}

bool OtlpReader::next(ExportMetricsServiceRequest& request) {
  request.Clear();
  bytes_ = 0;
  has_text_ = false;
  while (text_ < texts_.size()) {
    absl::string_view line;
    while (bytes_ < most_bytes_ && take_line(line)) read_line(line, request);
    if (bytes_ >= most_bytes_) return true;
    has_text_ = false;
    series_ = {};
    if (++text_ < texts_.size()) rest_ = texts_[text_].text;
  }
  return request.resource_metrics_size() > 0;
}

bool OtlpReader::take_line(absl::string_view& line) {
  if (rest_.empty()) return false;
  line = rest_.substr(0, rest_.find('\n'));
  rest_.remove_prefix(std::min(rest_.size(), line.size() + 1));
  return true;
}

void OtlpReader::read_line(absl::string_view line, ExportMetricsServiceRequest& request) {
  if (line.empty() || line[0] == '#') return;
  bool known = false;
  const std::optional<SampleLine> sample = metrics::parse_sample(line, known);
  if (!sample.has_value() || sample->labels.size() > kMaxLabelBytes) return;
  if (metrics::family_of(sample->metric).kind != Kind::kHistogram) {
    add_number(*sample, request);
  } else if (absl::EndsWith(sample->name, "_bucket")) {
    add_bucket(*sample);
  } else {
    add_histogram(*sample, request);
  }
}

proto::otlp::Metric& OtlpReader::metric_in(ExportMetricsServiceRequest& request, metrics::Metric metric) {
  if (!has_text_) {
    proto::otlp::ResourceMetrics& resource = *request.add_resource_metrics();
    std::map<std::string, std::string> attributes = texts_[text_].attributes;
    attributes.insert(attributes_.begin(), attributes_.end());
    for (const auto& [name, value] : attributes)
      set_text(*resource.mutable_resource()->add_attributes(), name, value);
    proto::otlp::ScopeMetrics& scope = *resource.add_scope_metrics();
    scope.mutable_scope()->set_name("gradwire");
    scope.mutable_scope()->set_version(kVersion);
    bytes_ += resource.ByteSizeLong() + kFraming;
    has_text_ = true;
    last_ = metrics::Metric::kCount;
  }
  proto::otlp::ScopeMetrics& scope =
      *request.mutable_resource_metrics(request.resource_metrics_size() - 1)->mutable_scope_metrics(0);
  if (last_ == metric) return *scope.mutable_metrics(scope.metrics_size() - 1);
  last_ = metric;
  const Family& family = metrics::family_of(metric);
  proto::otlp::Metric& message = *scope.add_metrics();
  message.set_name(std::string(family.name));
  message.set_description(std::string(family.help));
  message.set_unit(unit_of(family.unit));
  switch (family.kind) {
    case Kind::kCounter:
      message.mutable_sum()->set_temporality(proto::otlp::TEMPORALITY_CUMULATIVE);
      message.mutable_sum()->set_is_monotonic(true);
      break;
    case Kind::kGauge:
      message.mutable_gauge();
      break;
    case Kind::kHistogram:
      message.mutable_histogram()->set_temporality(proto::otlp::TEMPORALITY_CUMULATIVE);
      break;
  }
  bytes_ += message.ByteSizeLong() + kFraming;
  return message;
}

void OtlpReader::add_number(const SampleLine& sample, ExportMetricsServiceRequest& request) {
  const bool counter = metrics::family_of(sample.metric).kind == Kind::kCounter;
  double real = 0;
  int64_t integer = 0;
  const bool is_integer = absl::SimpleAtoi(sample.value, &integer);
  if (!is_integer && !absl::SimpleAtod(sample.value, &real)) return;
  if (counter && (integer < 0 || real < 0)) return;
  proto::otlp::Metric& metric = metric_in(request, sample.metric);
  proto::otlp::NumberDataPoint& point =
      counter ? *metric.mutable_sum()->add_data_points() : *metric.mutable_gauge()->add_data_points();
  add_labels(sample.labels, point);
  if (counter) point.set_start_time_unix_nano(nanoseconds(texts_[text_].since));
  point.set_time_unix_nano(now_ns_);
  if (is_integer) {
    point.set_as_int(integer);
  } else {
    point.set_as_double(real);
  }
  bytes_ += point.ByteSizeLong() + kFraming;
}

// The buckets of a series stand together and in order, each with the number of values up to its bound. A
// bucket that is out of order spoils the whole series: without it the others would mean something else.
void OtlpReader::add_bucket(const SampleLine& sample) {
  absl::string_view labels = sample.labels;
  double bound = 0;
  uint64_t below = 0;
  const bool has_bound = take_bound(labels, bound);
  const bool has_value = absl::SimpleAtoi(sample.value, &below);
  if (series_.metric != sample.metric || series_.labels != labels || series_.complete) {
    series_ = {};
    series_.metric = sample.metric;
    series_.labels = labels;
  }
  // Also refuses a bound that is not a number.
  const double before =
      series_.bounds.empty() ? -std::numeric_limits<double>::infinity() : series_.bounds.back();
  const bool fits = has_bound && has_value && bound > before && series_.bounds.size() < kMostBounds &&
                    (series_.below.empty() || below >= series_.below.back());
  series_.malformed = series_.malformed || !fits;
  if (series_.malformed) return;
  series_.complete = bound == std::numeric_limits<double>::infinity();
  if (!series_.complete) series_.bounds.push_back(bound);
  series_.below.push_back(below);
}

// The sum follows the buckets, and the count follows the sum. The count must be that of the buckets.
void OtlpReader::add_histogram(const SampleLine& sample, ExportMetricsServiceRequest& request) {
  const bool belongs = series_.complete && series_.metric == sample.metric && series_.labels == sample.labels;
  if (belongs && absl::EndsWith(sample.name, "_sum")) {
    double sum = 0;
    if (absl::SimpleAtod(sample.value, &sum)) series_.sum = sum;
    return;
  }
  const Series series = std::exchange(series_, {});
  uint64_t count = 0;
  if (!belongs || !series.sum.has_value() || !absl::SimpleAtoi(sample.value, &count) ||
      count != series.below.back()) {
    return;
  }
  proto::otlp::HistogramDataPoint& point =
      *metric_in(request, sample.metric).mutable_histogram()->add_data_points();
  add_labels(sample.labels, point);
  point.set_start_time_unix_nano(nanoseconds(texts_[text_].since));
  point.set_time_unix_nano(now_ns_);
  point.set_count(count);
  point.set_sum(*series.sum);
  uint64_t before = 0;
  for (const uint64_t below : series.below) {
    point.add_bucket_counts(below - before);
    before = below;
  }
  for (const double bound : series.bounds) point.add_explicit_bounds(bound);
  bytes_ += point.ByteSizeLong() + kFraming;
}

}  // namespace gradwire::rpc
