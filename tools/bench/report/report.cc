#include "gradwire/tools/bench/report/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace gradwire::bench {
namespace {

// An aim: the minimum ratio to a peer; or, without a peer, the maximum of Gradwire's own figure. An empty
// string matches any name.
struct Aim {
  absl::string_view case_name;
  absl::string_view transport;
  absl::string_view metric;
  absl::string_view peer;
  double bound;
};

// Whether a name matches a pattern. "*" at the end matches any rest. If several aims match a row, the last
// one counts.
bool fits(absl::string_view pattern, absl::string_view name) {
  return absl::ConsumeSuffix(&pattern, "*") ? absl::StartsWith(name, pattern)
                                            : pattern.empty() || pattern == name;
}

constexpr absl::string_view kTorch = "torch_tensorpipe";

constexpr Aim kAims[] = {
    {"add2", "shm", "p50_us", kTorch, 20},
    {"add2_cold", "shm", "p50_us", kTorch, 1.5},
    {"add2_cold", "shm", "p50_us", "floor_futex", 1 / 1.6},
    {"add2", "tcp", "p50_us", kTorch, 20},
    {"add2", "tcp", "p50_us", "grpc", 4},
    {"echo_1MiB", "shm", "p50_us", kTorch, 3},
    {"echo_64MiB", "shm", "p50_us", kTorch, 3.5},
    {"echo_64MiB", "shm", "p50_us", "floor_memcpy", 1 / 1.25},
    {"echo_64MiB", "tcp", "p50_us", kTorch, 1.5},
    {"inflight_add2", "shm", "calls_per_s", kTorch, 20},
    {"inflight_add2", "tcp", "calls_per_s", kTorch, 40},
    {"push_pull_1MiB", "shm", "p50_us", kTorch, 3},
    {"set_get", "store", "p50_us", "torch_store", 1},
    {"oversubscribed_add2", "", "calls_per_s", kTorch, 3},
    {"cycle", "", "p50_us", kTorch, 20},
    {"remote_add", "", "p50_us", kTorch, 12},
    {"", "", "smart_over_fast", "", 1.3},
    {"killed_peer", "", "in_flight_failed_ms", "", 50},
    {"killed_peer", "", "noticed_ms", "", 50},
    {"all_to_all_16", "shm", "first_contact_ms", kTorch, 10},
    {"", "", "descriptors_per_peer", "", 2},
    {"all_to_all_64", "", "memory_per_peer_kb", "", 1024},
    {"all_reduce_2_ranks_*", "", "p50_us", "openmpi", 1},
    {"all_reduce_2_ranks_1MiB", "", "p50_us", "openmpi", 1.3},
    {"all_reduce_2_ranks_16MiB", "", "p50_us", "openmpi", 1.3},
    {"all_reduce_2_ranks_64MiB", "", "p50_us", "openmpi", 1.6},
    {"all_reduce_4_ranks_*", "", "p50_us", "openmpi", 1.2},
    {"all_reduce_*", "", "p50_us", "gloo", 3},
    {"idle", "", "cpu_percent", "", 0.1},
    {"", "", "p99_over_p50", "", 3},
};

}  // namespace

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

std::string aim_of(const Row& row) {
  std::string result;
  for (const Aim& aim : kAims) {
    if (!fits(aim.case_name, row.case_name)) continue;
    if (!aim.transport.empty() && aim.transport != row.transport) continue;
    if (aim.metric != row.metric) continue;
    // An aim without a peer is a bound on Gradwire's own figure, whatever the peer of the row.
    const bool absolute = aim.peer.empty();
    if (!absolute && aim.peer != row.peer) continue;
    const bool reached = absolute ? row.gradwire <= aim.bound : row.ratio >= aim.bound;
    result = absl::StrCat(reached ? "ok " : "MISS ", absolute ? "<= " : ">= ", short_number(aim.bound),
                          absolute ? "" : "x");
  }
  return result;
}

std::string text_table(const Report& report) {
  std::string text;
  for (const auto& [name, value] : report.about) absl::StrAppend(&text, name, ": ", value, "\n");
  absl::StrAppend(&text, "\n");
  const auto same = [](const Row& a, const Row& b) {
    return a.suite == b.suite && a.case_name == b.case_name && a.transport == b.transport &&
           a.metric == b.metric;
  };
  absl::StrAppendFormat(&text, "%-10s %-20s %-6s %-20s %10s   %s\n", "suite", "case", "over", "metric",
                        "gradwire", "peer: value (times better), aim");
  for (std::size_t i = 0; i < report.rows.size();) {
    const Row& first = report.rows[i];
    absl::StrAppendFormat(&text, "%-10s %-20s %-6s %-20s %10s  ", first.suite, first.case_name,
                          first.transport, first.metric, short_number(first.gradwire));
    std::string line;
    for (std::string last_aim; i < report.rows.size() && same(report.rows[i], first); ++i) {
      const Row& row = report.rows[i];
      if (!row.peer.empty()) {
        absl::StrAppendFormat(&line, " %s: %s (%sx)", row.peer, short_number(row.peer_value),
                              short_number(row.ratio));
      }
      const std::string aim = aim_of(row);
      if (!aim.empty() && aim != last_aim) absl::StrAppend(&line, " [", aim, "]");
      last_aim = aim;
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  for (const std::string& line : report.skipped) absl::StrAppend(&text, "skipped: ", line, "\n");
  return text;
}

}  // namespace gradwire::bench
