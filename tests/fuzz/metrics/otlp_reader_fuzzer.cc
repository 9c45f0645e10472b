// Reads the input as the metrics of a worker, as the launcher does before it pushes them to an OpenTelemetry
// collector (rpc/otlp/otlp_reader.h). Whatever the worker says, the requests must keep the rules of OTLP.

#include <cmath>
#include <set>
#include <string>

#include "gradwire/base/text/utf8.h"
#include "gradwire/rpc/otlp/otlp_reader.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace {

using gradwire::fuzzing::require;
using gradwire::rpc::OtlpReader;
namespace otlp = gradwire::proto::otlp;

constexpr std::size_t kMost = 500;

template <class Points>
void check_attributes(const Points& points) {
  require(!points.empty(), "a metric has no data point");
  for (const auto& point : points) {
    std::set<std::string> keys;
    for (const otlp::KeyValue& attribute : point.attributes()) {
      require(!attribute.key().empty() && keys.insert(attribute.key()).second,
              "a key is empty or stands twice");
      for (absl::string_view rest = attribute.value().string_value(); !rest.empty();) {
        const gradwire::Utf8Character character = gradwire::first_character(rest);
        require(character.valid, "a value is not UTF-8");
        rest.remove_prefix(character.size);
      }
    }
    require(point.time_unix_nano() >= point.start_time_unix_nano(), "a series ends before it begins");
  }
}

void check_histogram(const otlp::HistogramDataPoint& point) {
  require(point.bucket_counts_size() == point.explicit_bounds_size() + 1, "a histogram lacks a bucket");
  uint64_t sum = 0;
  for (const uint64_t count : point.bucket_counts()) {
    require(count <= point.count(), "a bucket has more values than all");
    sum += count;
  }
  require(sum == point.count(), "the buckets do not add up");
  for (int i = 0; i < point.explicit_bounds_size(); ++i) {
    require(std::isfinite(point.explicit_bounds(i)), "a bound is not finite");
    require(i == 0 || point.explicit_bounds(i - 1) < point.explicit_bounds(i), "bounds do not ascend");
  }
}

void check_sum(const otlp::Sum& sum) {
  require(sum.is_monotonic() && sum.temporality() == otlp::TEMPORALITY_CUMULATIVE,
          "a counter is not a monotonic cumulative sum");
  for (const otlp::NumberDataPoint& point : sum.data_points())
    require(point.as_int() >= 0 && !(point.as_double() < 0), "a counter is negative");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  const absl::Time now = absl::FromUnixSeconds(2'000'000'000);
  OtlpReader reader({{.text = input, .since = now - absl::Hours(1), .attributes = {}}}, {{"a", "b"}}, now,
                    kMost);
  otlp::ExportMetricsServiceRequest request;
  while (reader.next(request)) {
    // One data point may go over the limit. Its texts are those of one line of the input.
    require(request.ByteSizeLong() < kMost + 2'000 + 2 * size, "a request is too large");
    for (const auto& resource : request.resource_metrics()) {
      require(resource.resource().attributes_size() == 1, "the sender has no attributes");
      for (const otlp::Metric& metric : resource.scope_metrics(0).metrics()) {
        require(metric.name().compare(0, 9, "gradwire_") == 0, "a metric is not in the table");
        if (metric.has_sum()) {
          check_attributes(metric.sum().data_points());
          check_sum(metric.sum());
        } else if (metric.has_histogram()) {
          check_attributes(metric.histogram().data_points());
          for (const auto& point : metric.histogram().data_points()) check_histogram(point);
        } else {
          check_attributes(metric.gauge().data_points());
        }
      }
    }
  }
  (void)gradwire::rpc::first_label_in(input, "worker");
  return 0;
}
