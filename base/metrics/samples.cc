#include "gradwire/base/metrics/samples.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/base/metrics/label_character.h"
#include "gradwire/base/metrics/sample_line.h"
#include "gradwire/base/text/utf8.h"

namespace gradwire::metrics {
namespace {

void append_label(absl::string_view name, absl::string_view value, std::string& out) {
  if (!out.empty()) out += ',';
  absl::StrAppend(&out, name, "=\"");
  append_escaped(value, out);
  out += '"';
}

std::string seconds(absl::Duration duration) {
  return duration == absl::InfiniteDuration() ? "+Inf"
                                              : absl::StrFormat("%.9g", absl::ToDoubleSeconds(duration));
}

std::vector<ProcessCollector>& process_collectors() {
  static auto* const collectors = new std::vector<ProcessCollector>;
  return *collectors;
}

}  // namespace

void append_escaped(absl::string_view value, std::string& out) {
  while (!value.empty()) {
    const Utf8Character character = first_character(value);
    if (!is_shown(character)) {
      out += '?';
    } else if (character.code == '\n') {
      out += "\\n";
    } else if (character.code == '\\' || character.code == '"') {
      out += '\\';
      out += value[0];
    } else {
      absl::StrAppend(&out, value.substr(0, character.size));
    }
    value.remove_prefix(character.size);
  }
}

std::string heading_of(const Family& family) {
  std::string text = absl::StrCat("# HELP ", family.name, " ");
  for (const char c : family.help) {
    if (c == '\\') text += '\\';
    text += c;
  }
  absl::StrAppend(&text, "\n# TYPE ", family.name, " ", name_of(family.kind), "\n");
  return text;
}

Samples::Samples(std::initializer_list<Label> labels) {
  for (const Label& label : labels) append_label(label.name, label.value, constant_labels_);
}

std::string Samples::labels_of(Metric metric, Values values) const {
  const Family& family = family_of(metric);
  std::string labels = constant_labels_;
  for (std::size_t i = 0; i < values.size() && i < family.label_count(); ++i) {
    append_label(family.labels[i], values[i], labels);
  }
  return labels;
}

void Samples::add_line(Metric metric, absl::string_view suffix, absl::string_view labels,
                       absl::string_view value) {
  std::string& out = lines_[static_cast<std::size_t>(metric)];
  absl::StrAppend(&out, family_of(metric).name, suffix);
  if (!labels.empty()) absl::StrAppend(&out, "{", labels, "}");
  absl::StrAppend(&out, " ", value, "\n");
}

void Samples::add(Metric metric, Values values, uint64_t value) {
  add_line(metric, "", labels_of(metric, values), absl::StrCat(value));
}

void Samples::add(Metric metric, Values values, double value) {
  add_line(metric, "", labels_of(metric, values), absl::StrFormat("%.9g", value));
}

void Samples::add(Metric metric, Values values, const HistogramValues& value) {
  const std::string labels = labels_of(metric, values);
  uint64_t below = 0;
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
    below += value.counts[bucket];
    std::string with_bound = labels;
    append_label("le", seconds(bucket_bound(bucket)), with_bound);
    add_line(metric, "_bucket", with_bound, absl::StrCat(below));
  }
  add_line(metric, "_sum", labels, absl::StrFormat("%.9f", static_cast<double>(value.sum_ns) * 1e-9));
  // Not a separate count: it must equal the last bucket, also while other threads record.
  add_line(metric, "_count", labels, absl::StrCat(below));
}

std::size_t Samples::add_text(absl::string_view text, const Label& label) {
  std::size_t malformed = 0;
  std::string first;
  append_label(label.name, label.value, first);
  while (!text.empty()) {
    const absl::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.empty() || line[0] == '#') continue;
    bool known = false;
    const std::optional<SampleLine> sample = parse_sample(line, known);
    // A quote inside a value is escaped, so this finds only names.
    const std::string name = absl::StrCat(label.name, "=\"");
    if (!sample.has_value() || sample->label_count == kMostLabels || absl::StartsWith(sample->labels, name) ||
        absl::StrContains(sample->labels, "," + name)) {
      malformed += known ? 1 : 0;
      continue;
    }
    std::string series =
        absl::StrCat(sample->name, "{", first, sample->labels.empty() ? "" : ",", sample->labels, "}");
    if (!added_.insert(series).second) continue;
    absl::StrAppend(&lines_[static_cast<std::size_t>(sample->metric)], series, " ", sample->value, "\n");
  }
  return malformed;
}

std::string Samples::text() const {
  std::string text;
  for (std::size_t i = 0; i < kMetrics; ++i) {
    if (!lines_[i].empty()) absl::StrAppend(&text, heading_of(all_families()[i]), lines_[i]);
  }
  return text;
}

void register_process_collector(ProcessCollector collector) { process_collectors().push_back(collector); }

void collect_process(Samples& samples) {
  for (const ProcessCollector collector : process_collectors()) collector(samples);
}

}  // namespace gradwire::metrics
