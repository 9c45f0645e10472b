#include "gradwire/tools/bench/report/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/tools/bench/report/aims.h"

namespace gradwire::bench {

bool same_figure(const Row& a, const Row& b) {
  return a.suite == b.suite && a.case_name == b.case_name && a.transport == b.transport &&
         a.metric == b.metric;
}

std::string json_line(const Row& row) {
  nlohmann::ordered_json line;
  const bool compared = !row.peer.empty();
  line["suite"] = row.suite;
  line["case"] = row.case_name;
  line["transport"] = row.transport;
  line["metric"] = row.metric;
  line["gradwire"] = row.gradwire;
  line["peer"] = compared ? nlohmann::ordered_json(row.peer) : nlohmann::ordered_json();
  line["peer_value"] = compared ? nlohmann::ordered_json(row.peer_value) : nlohmann::ordered_json();
  line["ratio"] = compared ? nlohmann::ordered_json(row.ratio) : nlohmann::ordered_json();
  line["rounds"] = row.rounds;
  return line.dump();
}

std::string short_number(double value) {
  const double size = std::abs(value);
  const int decimals = size == 0 ? 0 : std::clamp(2 - static_cast<int>(std::floor(std::log10(size))), 0, 5);
  std::string text = absl::StrFormat("%.*f", decimals, value);
  if (absl::StrContains(text, '.')) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

std::string text_table(const Report& report) {
  std::string text;
  for (const auto& [name, value] : report.about) absl::StrAppend(&text, name, ": ", value, "\n");
  absl::StrAppend(&text, "\n");
  absl::StrAppendFormat(&text, "%-11s %-34s %-5s %-20s %10s   %s\n", "suite", "case", "over", "metric",
                        "gradwire", "peer: value (times better), aim");
  for (std::size_t i = 0; i < report.rows.size();) {
    const Row& first = report.rows[i];
    absl::StrAppendFormat(&text, "%-11s %-34s %-5s %-20s %10s  ", first.suite, first.case_name,
                          first.transport, first.metric, short_number(first.gradwire));
    std::string line;
    if (const Aim own = own_aim_of(first); !own.text.empty()) {
      absl::StrAppend(&line, " [", own.text, "]");
    }
    for (; i < report.rows.size() && same_figure(report.rows[i], first); ++i) {
      const Row& row = report.rows[i];
      if (row.peer.empty()) continue;
      absl::StrAppendFormat(&line, " %s: %s (%sx)", row.peer, short_number(row.peer_value),
                            short_number(row.ratio));
      if (const Aim aim = aim_of(row); !aim.text.empty()) absl::StrAppend(&line, " [", aim.text, "]");
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  for (const std::string& line : report.skipped) absl::StrAppend(&text, "skipped: ", line, "\n");
  absl::StrAppend(&text, aims_summary(report.rows));
  return text;
}

}  // namespace gradwire::bench
