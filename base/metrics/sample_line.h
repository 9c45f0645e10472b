#pragma once

#include <cstddef>
#include <optional>

#include "absl/strings/string_view.h"
#include "gradwire/base/metrics/families.h"

namespace gradwire::metrics {

// The most labels that a sample has, with those that other processes add.
inline constexpr std::size_t kMostLabels = 8;

// A line with a sample, in parts. The views are parts of the line.
struct SampleLine {
  Metric metric = Metric::kCount;
  // With the suffix of a histogram.
  absl::string_view name;
  // Without the braces; may be empty.
  absl::string_view labels;
  std::size_t label_count = 0;
  absl::string_view value;
};

// Parses a line that Samples::text() may have made. `known` becomes whether the name belongs to a family of
// the table. nullopt if it does not, or if the line is malformed: then a text with this line would be, too.
std::optional<SampleLine> parse_sample(absl::string_view line, bool& known);

}  // namespace gradwire::metrics
