#include "gradwire/base/metrics/sample_line.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
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

}  // namespace gradwire::metrics
