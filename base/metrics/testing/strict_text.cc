#include "gradwire/base/metrics/testing/strict_text.h"

#include <cmath>
#include <limits>
#include <regex>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace gradwire::metrics::testing {
namespace {

const std::regex& name_pattern() {
  static const auto* const pattern = new std::regex("[a-z][a-z0-9_]*");
  return *pattern;
}

absl::Status wrong(int line, absl::string_view what, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what, ": ", text));
}

// Takes the text up to the first of `ends`, which stays.
std::string take_until(absl::string_view& text, absl::string_view ends) {
  const std::size_t end = std::min(text.find_first_of(ends), text.size());
  std::string taken(text.substr(0, end));
  text.remove_prefix(end);
  return taken;
}

bool read_labels(absl::string_view& text, std::map<std::string, std::string>& labels) {
  if (!absl::ConsumePrefix(&text, "{")) return true;
  while (true) {
    const std::string name = take_until(text, "=");
    if (!std::regex_match(name, name_pattern()) || !absl::ConsumePrefix(&text, "=\"")) return false;
    std::string value;
    while (!text.empty() && text[0] != '"') {
      char c = text[0];
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c == '\\') {
        if (text.size() < 2) return false;
        c = text[1] == 'n' ? '\n' : text[1];
        if (c != '\n' && c != '\\' && c != '"') return false;
        text.remove_prefix(1);
      }
      value += c;
      text.remove_prefix(1);
    }
    if (!absl::ConsumePrefix(&text, "\"")) return false;
    if (!labels.emplace(name, value).second) return false;
    if (absl::ConsumePrefix(&text, "}")) return true;
    if (!absl::ConsumePrefix(&text, ",")) return false;
  }
}

bool read_value(absl::string_view text, double& value) {
  if (text == "+Inf") {
    value = std::numeric_limits<double>::infinity();
    return true;
  }
  return !text.empty() && absl::SimpleAtod(text, &value) && std::isfinite(value);
}

bool has_labels(const TextSample& sample, const std::map<std::string, std::string>& labels) {
  for (const auto& [name, value] : labels) {
    const auto found = sample.labels.find(name);
    if (found == sample.labels.end() || found->second != value) return false;
  }
  return true;
}

// Checks the buckets of each series of a histogram, which stand together, and their sum and count.
absl::Status check_histogram(const std::string& name, const TextFamily& family) {
  std::map<std::map<std::string, std::string>, std::pair<double, double>> last;  // The bound and the count.
  std::size_t sums = 0;
  std::size_t counts = 0;
  for (const TextSample& sample : family.samples) {
    std::map<std::string, std::string> labels = sample.labels;
    if (sample.name == name + "_bucket") {
      double bound = 0;
      if (labels.count("le") == 0 || !read_value(labels["le"], bound))
        return absl::InvalidArgumentError(absl::StrCat(name, ": a bucket without a bound"));
      labels.erase("le");
      const auto found = last.find(labels);
      if (found != last.end() && (bound <= found->second.first || sample.value < found->second.second))
        return absl::InvalidArgumentError(absl::StrCat(name, ": buckets do not grow"));
      last[labels] = {bound, sample.value};
    } else if (sample.name == name + "_sum") {
      ++sums;
    } else if (sample.name == name + "_count") {
      ++counts;
      if (last.count(labels) == 0 || !std::isinf(last[labels].first) || last[labels].second != sample.value)
        return absl::InvalidArgumentError(absl::StrCat(name, ": the count is not that of the last bucket"));
    } else {
      return absl::InvalidArgumentError(absl::StrCat(name, ": sample ", sample.name));
    }
  }
  if (sums != last.size() || counts != last.size())
    return absl::InvalidArgumentError(absl::StrCat(name, ": a series without sum or count"));
  return absl::OkStatus();
}

}  // namespace

double TextFamily::value(const std::map<std::string, std::string>& labels, absl::string_view suffix) const {
  for (const TextSample& sample : samples) {
    if (has_labels(sample, labels) && absl::EndsWith(sample.name, suffix)) return sample.value;
  }
  return -1;
}

double TextFamily::sum(const std::map<std::string, std::string>& labels, absl::string_view suffix) const {
  double sum = 0;
  for (const TextSample& sample : samples) {
    if (has_labels(sample, labels) && absl::EndsWith(sample.name, suffix)) sum += sample.value;
  }
  return sum;
}

absl::StatusOr<TextFamilies> parse_strictly(absl::string_view text) {
  TextFamilies families;
  std::set<std::pair<std::string, std::map<std::string, std::string>>> seen;
  std::string current;
  int number = 0;
  if (!text.empty() && text.back() != '\n') return absl::InvalidArgumentError("the last line has no end");
  while (!text.empty()) {
    ++number;
    absl::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(line.size() + 1);
    const absl::string_view whole = line;
    if (absl::ConsumePrefix(&line, "# HELP ")) {
      current = take_until(line, " ");
      if (!std::regex_match(current, name_pattern()) || !absl::ConsumePrefix(&line, " ") || line.empty())
        return wrong(number, "malformed HELP", whole);
      if (!families.emplace(current, TextFamily{"", std::string(line), {}}).second)
        return wrong(number, "the family stands twice", whole);
    } else if (absl::ConsumePrefix(&line, "# TYPE ")) {
      const std::string name = take_until(line, " ");
      if (name != current || current.empty() || !families[current].type.empty())
        return wrong(number, "TYPE without HELP before it", whole);
      (void)absl::ConsumePrefix(&line, " ");
      if (line != "counter" && line != "gauge" && line != "histogram")
        return wrong(number, "unknown type", whole);
      families[current].type = std::string(line);
    } else {
      TextSample sample;
      sample.name = take_until(line, "{ ");
      if (!std::regex_match(sample.name, name_pattern())) return wrong(number, "malformed name", whole);
      if (!read_labels(line, sample.labels)) return wrong(number, "malformed labels", whole);
      if (!absl::ConsumePrefix(&line, " ") || !read_value(line, sample.value))
        return wrong(number, "malformed value", whole);
      if (current.empty() || families[current].type.empty())
        return wrong(number, "a sample without TYPE", whole);
      if (families[current].type != "histogram" && sample.name != current)
        return wrong(number, "a sample of another family", whole);
      if (families[current].type == "counter" && sample.value < 0)
        return wrong(number, "a negative counter", whole);
      if (!seen.emplace(sample.name, sample.labels).second)
        return wrong(number, "the series stands twice", whole);
      families[current].samples.push_back(std::move(sample));
    }
  }
  for (const auto& [name, family] : families) {
    if (family.samples.empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": no samples"));
    if (family.type == "histogram") {
      if (absl::Status status = check_histogram(name, family); !status.ok()) return status;
    }
  }
  return families;
}

}  // namespace gradwire::metrics::testing
