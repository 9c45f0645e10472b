#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire::metrics::testing {

// One line of Prometheus's text with a value.
struct TextSample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};
struct TextFamily {
  std::string type;
  std::string help;
  std::vector<TextSample> samples;

  // The value of the first sample with these labels, and perhaps others; -1 if there is no such sample.
  double value(const std::map<std::string, std::string>& labels, absl::string_view suffix = "") const;
  // The sum of the values of all samples with these labels, and perhaps others.
  double sum(const std::map<std::string, std::string>& labels, absl::string_view suffix = "") const;
};
// Families by their name.
using TextFamilies = std::map<std::string, TextFamily>;

// Reads Prometheus's text, and accepts nothing that the format does not allow or that Gradwire must not
// write: each family stands once, with HELP and TYPE before its samples; names are valid; each series stands
// once; buckets of a histogram grow, and the last one, +Inf, equals the count. InvalidArgument names the
// line.
absl::StatusOr<TextFamilies> parse_strictly(absl::string_view text);

}  // namespace gradwire::metrics::testing
