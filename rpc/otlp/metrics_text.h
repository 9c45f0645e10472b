#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace gradwire::rpc {

// Metrics at one moment, as Samples::text() makes them (base/metrics/samples.h), and what they describe.
struct MetricsText {
  std::string text;
  // The wall-clock time from which on the counters count.
  absl::Time since;
  // The attributes of the worker, beside those of CollectorOptions.
  std::map<std::string, std::string> attributes;
};

// Reads the metrics. Called on the thread of an exporter.
using MetricsSource = std::function<std::vector<MetricsText>()>;

}  // namespace gradwire::rpc
