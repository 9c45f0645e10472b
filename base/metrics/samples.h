#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/metrics/families.h"
#include "gradwire/base/metrics/histogram.h"

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

// A label's name and value.
struct Label {
  absl::string_view name;
  absl::string_view value;
};

// Appends a label's value in the form of Prometheus's text, without the quotes. Backslashes, quotes and line
// feeds are escaped. What is not UTF-8, and other control characters, become '?': a reader would refuse the
// whole text for one such byte.
void append_escaped(absl::string_view value, std::string& out);

// The values of metrics at one moment, on their way to Prometheus's text. Values of one family may be added
// at different times: the text has each family once. Not thread-safe.
class Samples {
 public:
  // All series get these labels, before their own.
  explicit Samples(std::initializer_list<Label> labels = {});

  using Values = absl::Span<const absl::string_view>;
  // Adds a series of a counter or a gauge. REQUIRES: as many label values as the family has labels.
  void add(Metric metric, Values values, double value);
  void add(Metric metric, Values values, uint64_t value);
  void add(Metric metric, std::initializer_list<absl::string_view> values, uint64_t value) {
    add(metric, Values(values.begin(), values.size()), value);
  }
  // Adds a series of a histogram.
  void add(Metric metric, Values values, const HistogramValues& value);
  void add(Metric metric, std::initializer_list<absl::string_view> values, const HistogramValues& value) {
    add(metric, Values(values.begin(), values.size()), value);
  }

  // Adds the samples of a text that another process has made. Each gets `label` as its first label. Samples
  // of families that are not in the table are left out. So are a sample that is malformed, and one that is
  // there already: a reader would refuse the whole text for it. Returns the number of samples that were
  // malformed.
  std::size_t add_text(absl::string_view text, const Label& label);

  // The text (version 0.0.4 of the format), with HELP and TYPE of each family that has a series.
  std::string text() const;

 private:
  std::string labels_of(Metric metric, Values values) const;
  void add_line(Metric metric, absl::string_view suffix, absl::string_view labels, absl::string_view value);

  std::string constant_labels_;
  std::array<std::string, kMetrics> lines_;
  // The names and labels of the samples of other processes.
  HashSet<std::string> added_;
};

// HELP and TYPE of a family.
std::string heading_of(const Family& family);

// Adds the metrics that belong to the process, for example those of process groups, to the text of each
// agent. Call during static initialisation. Called on the thread that asks for a text; must not block.
using ProcessCollector = void (*)(Samples& samples);
void register_process_collector(ProcessCollector collector);
// Calls all of them.
void collect_process(Samples& samples);

}  // namespace gradwire::metrics
