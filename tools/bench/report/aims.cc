#include "gradwire/tools/bench/report/aims.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gradwire/tools/bench/report/statistics.h"

namespace gradwire::bench {
namespace {

// The minimum ratio to a peer; or, without a peer, the bound on Gradwire's own figure. An empty string
// matches any name, and "*" at the end matches any rest. If several aims of a kind match a row, the last one
// counts.
struct Pattern {
  absl::string_view case_name;
  absl::string_view transport;
  absl::string_view metric;
  absl::string_view peer;
  double bound;
};

bool fits(absl::string_view pattern, absl::string_view name) {
  return absl::ConsumeSuffix(&pattern, "*") ? absl::StartsWith(name, pattern)
                                            : pattern.empty() || pattern == name;
}

constexpr absl::string_view kTorch = "torch_tensorpipe";

constexpr Pattern kRatios[] = {
    // Calls.
    {"add2", "shm", "p50_us", kTorch, 20},
    {"add2", "tcp", "p50_us", kTorch, 20},
    {"add2", "tcp", "p50_us", "grpc", 4},
    {"add2_cold", "shm", "p50_us", kTorch, 1.5},
    {"add2_cold", "shm", "p50_us", "floor_futex", 1 / 1.6},
    {"add2_cold", "shm", "p50_us", "floor_wake", 1.0 / 4},
    {"add2_every_*", "", "p50_us", kTorch, 5},
    {"add2_every_*", "", "p50_us", "grpc", 3},
    {"push_pull_1MiB_every_*", "", "p50_us", kTorch, 5},
    {"inflight_add2", "shm", "calls_per_s", kTorch, 20},
    {"inflight_add2", "tcp", "calls_per_s", kTorch, 40},
    {"oversubscribed_add2", "", "calls_per_s", kTorch, 3},
    {"stream_*", "tcp", "items_per_s", "grpc", 3},
    // Security.
    {"add2", "tls", "p50_us", "grpc", 4},
    {"echo_64MiB", "tls", "p50_us", "grpc", 2},
    // Tensors.
    {"echo_64KiB", "shm", "p50_us", kTorch, 4},
    {"echo_64KiB", "shm", "p50_us", "floor_handoff", 1 / 1.3},
    {"echo_1MiB", "shm", "p50_us", kTorch, 4},
    {"echo_1MiB", "shm", "p50_us", "floor_handoff", 1 / 1.3},
    {"echo_16MiB", "shm", "p50_us", kTorch, 4},
    {"echo_16MiB", "shm", "p50_us", "floor_handoff", 1 / 1.3},
    {"echo_16MiB", "tcp", "p50_us", kTorch, 1.5},
    {"echo_64MiB", "shm", "p50_us", kTorch, 3.5},
    {"echo_64MiB", "shm", "p50_us", "floor_memcpy", 1 / 1.25},
    {"echo_64MiB", "tcp", "p50_us", kTorch, 1.5},
    {"push_1MiB", "shm", "p50_us", kTorch, 4},
    {"push_1MiB", "shm", "p50_us", "floor_handoff", 1 / 1.3},
    {"pull_1MiB", "shm", "p50_us", kTorch, 4},
    {"pull_1MiB", "shm", "p50_us", "floor_handoff", 1 / 1.3},
    {"push_pull_1MiB", "", "p50_us", kTorch, 4},
    // The other suites.
    {"set_get", "store", "p50_us", "torch_store", 1},
    {"cycle", "", "p50_us", kTorch, 20},
    {"remote_add", "", "p50_us", kTorch, 12},
    {"remote_add", "shm", "p50_us", kTorch, 40},
    {"chain_4", "", "p50_us", kTorch, 8},
    {"fanout_8", "", "p50_us", kTorch, 8},
    {"all_to_all_16", "shm", "first_contact_ms", kTorch, 10},
    // Collectives.
    {"", "", "p50_us", "openmpi", 1},
    {"all_reduce_*", "", "p50_us", "openmpi", 1.3},
    {"all_reduce_2_ranks_8B", "", "p50_us", "openmpi", 1},
    {"all_reduce_4_ranks_8B", "", "p50_us", "openmpi", 1.2},
    {"all_reduce_2_ranks_64MiB", "", "p50_us", "openmpi", 1.6},
    {"all_reduce_*", "", "p50_us", "gloo", 3},
};

constexpr Pattern kBounds[] = {
    {"null", "shm", "p50_us", "", 2},
    {"inflight_null", "shm", "calls_per_s", "", 1'000'000},
    {"inflight_add2", "shm", "calls_per_s", "", 400'000},
    {"inflight_add2", "tcp", "calls_per_s", "", 200'000},
    {"pass_64MiB", "shm", "p50_us", "", 20},
    {"pass_1GiB", "shm", "p50_us", "", 20},
    {"idle", "", "cpu_percent", "", 0.1},
    {"", "", "p99_over_p50", "", 3},
    {"clients_1000", "", "p99_over_p50", "", 5},
    {"clients_1000", "", "memory_per_peer_kb", "", 50},
    {"", "", "smart_over_fast", "", 1.3},
    {"killed_peer", "", "in_flight_failed_ms", "", 50},
    {"killed_peer", "", "noticed_ms", "", 50},
    {"", "", "descriptors_per_peer", "", 2},
    {"all_to_all_64", "", "memory_per_peer_kb", "", 1024},
};

bool matches(const Pattern& pattern, const Row& row) {
  return fits(pattern.case_name, row.case_name) && fits(pattern.transport, row.transport) &&
         pattern.metric == row.metric;
}

Aim make_aim(bool met, absl::string_view sign, double bound, absl::string_view unit) {
  return {met, absl::StrCat(met ? "ok " : "MISS ", sign, " ", short_number(bound), unit)};
}

}  // namespace

Aim aim_of(const Row& row) {
  Aim result;
  for (const Pattern& pattern : kRatios) {
    if (!matches(pattern, row) || pattern.peer != row.peer) continue;
    result = make_aim(row.ratio >= pattern.bound, ">=", pattern.bound, "x");
  }
  return result;
}

Aim own_aim_of(const Row& row) {
  Aim result;
  for (const Pattern& pattern : kBounds) {
    if (!matches(pattern, row)) continue;
    const bool minimum = higher_is_better(row.metric);
    result = make_aim(minimum ? row.gradwire >= pattern.bound : row.gradwire <= pattern.bound,
                      minimum ? ">=" : "<=", pattern.bound, "");
  }
  return result;
}

std::string aims_summary(const std::vector<Row>& rows) {
  struct Count {
    std::string suite;
    int met = 0;
    int all = 0;
  };
  Count total;
  std::vector<Count> suites;
  const auto count = [&](const Row& row, const Aim& aim) {
    if (aim.text.empty()) return;
    // The rows of a suite may be apart.
    auto own = std::find_if(suites.begin(), suites.end(),
                            [&](const Count& suite) { return suite.suite == row.suite; });
    if (own == suites.end()) own = suites.insert(own, Count{.suite = row.suite});
    for (Count* counter : {&total, &*own}) {
      ++counter->all;
      counter->met += aim.met ? 1 : 0;
    }
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || !same_figure(rows[i], rows[i - 1])) count(rows[i], own_aim_of(rows[i]));
    count(rows[i], aim_of(rows[i]));
  }
  std::string text = absl::StrCat("aims: ", total.met, " of ", total.all, " met\n");
  for (const Count& suite : suites) {
    absl::StrAppend(&text, "  ", suite.suite, ": ", suite.met, " of ", suite.all, " met\n");
  }
  return text;
}

}  // namespace gradwire::bench
