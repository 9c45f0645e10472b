#include "gradwire/base/metrics/samples.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "gradwire/base/metrics/label_table.h"
#include "gradwire/base/text/utf8.h"

namespace gradwire::metrics {
namespace {

// The family of a sample's name; kCount if the table has none.
Metric metric_of(absl::string_view name) {
  const absl::Span<const Family> families = all_families();
  for (std::size_t i = 0; i < families.size(); ++i) {
    absl::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, families[i].name)) continue;
    const bool matches = families[i].kind == Kind::kHistogram
                             ? rest == "_bucket" || rest == "_sum" || rest == "_count"
                             : rest.empty();
    if (matches) return static_cast<Metric>(i);
  }
  return Metric::kCount;
}

// Takes a label, name="value", from the beginning of `text`.
bool take_label(absl::string_view& text, absl::string_view& name) {
  std::size_t length = 0;
  while (length < text.size() && (absl::ascii_islower(text[length]) || text[length] == '_')) ++length;
  name = text.substr(0, length);
  text.remove_prefix(length);
  if (length == 0 || !absl::ConsumePrefix(&text, "=\"")) return false;
  while (!text.empty() && text[0] != '"') {
    const Utf8Character character = first_character(text);
    if (!character.valid || character.code < 0x20) return false;
    if (text[0] == '\\') {
      text.remove_prefix(1);
      if (text.empty() || (text[0] != 'n' && text[0] != '\\' && text[0] != '"')) return false;
    }
    text.remove_prefix(character.size);
  }
  return absl::ConsumePrefix(&text, "\"");
}

// Takes the labels and the brace behind them, and counts the labels. No two may have one name.
bool take_labels(absl::string_view& text, std::size_t& count) {
  std::vector<absl::string_view> names;
  absl::string_view name;
  while (names.size() < kMostLabels && take_label(text, name)) {
    if (std::find(names.begin(), names.end(), name) != names.end()) return false;
    names.push_back(name);
    count = names.size();
    if (absl::ConsumePrefix(&text, "}")) return true;
    if (!absl::ConsumePrefix(&text, ",")) return false;
  }
  return false;
}

bool is_value(absl::string_view text) {
  double value = 0;
  // SimpleAtod() accepts spaces around the number.
  return !text.empty() && text.size() <= 40 &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isgraph(c); }) &&
         absl::SimpleAtod(text, &value) && std::isfinite(value);
}

}  // namespace

std::optional<SampleLine> parse_sample(absl::string_view line, bool& known) {
  SampleLine sample;
  sample.name = line.substr(0, line.find_first_of("{ "));
  sample.metric = metric_of(sample.name);
  known = sample.metric != Metric::kCount;
  if (!known) return std::nullopt;
  line.remove_prefix(sample.name.size());
  if (absl::ConsumePrefix(&line, "{")) {
    const absl::string_view labels = line;
    if (!take_labels(line, sample.label_count)) return std::nullopt;
    sample.labels = labels.substr(0, labels.size() - line.size() - 1);
  }
  if (!absl::ConsumePrefix(&line, " ") || !is_value(line)) return std::nullopt;
  sample.value = line;
  return sample;
}

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
