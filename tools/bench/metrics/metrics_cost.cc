// Measures what metrics cost: one event of each kind, and a call with and without them. The call adds two
// integers on another worker: it is shorter than any call with tensors, so the share of the metrics is the
// largest. Both workers are in this process. Groups with and without metrics call in turns of 0.3 ms, so that
// a change of the machine's speed meets both. Two groups of the same kind differ, too, by where their memory
// is and where their threads run. So each round makes new groups, and a second row compares two groups
// without metrics.
//
//   bazel run -c opt //tools/bench/metrics:metrics_cost

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/metrics/registry.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/metrics/peer_calls.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/tools/bench/report/statistics.h"
#include "gradwire/tools/bench/run/measure.h"

namespace gradwire::bench {
namespace {

int64_t add(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(add)

// The nanoseconds of one run of `step` on each of `threads`: the best of several rounds, because an
// interruption of a round is not part of the step.
template <class Step>
double cost_of(int threads, const Step& step) {
  constexpr int kRounds = 15;
  constexpr int kRuns = 200'000;
  double best = 1e18;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> costs(static_cast<std::size_t>(threads));
    std::vector<std::thread> running;
    for (double& cost : costs) {
      running.emplace_back([&cost, &step] {
        const int64_t start = nanoseconds();
        for (int i = 0; i < kRuns; ++i) step(i);
        cost = static_cast<double>(nanoseconds() - start) / kRuns;
      });
    }
    for (std::thread& each : running) each.join();
    best = std::min(best, *std::max_element(costs.begin(), costs.end()));
  }
  return best;
}

template <class Step>
void row(const char* what, const Step& step) {
  std::printf("%-52s %6.1f ns  %6.1f ns on two threads\n", what, cost_of(1, step), cost_of(2, step));
}

void measure_events() {
  metrics::Registry registry;
  metrics::Counter& counter = registry.counter(metrics::Metric::kStoreCalls, {"get", "OK"});
  metrics::Histogram& histogram = registry.histogram(metrics::Metric::kCallSeconds, {"f"});
  std::atomic<uint64_t> shared{0};
  rpc::CallMetrics calls(registry);
  const std::string function = "program::layer::lookup_rows";
  const std::string worker = "trainer0";
  row("an atomic addition, for comparison", [&](int) { shared.fetch_add(1, std::memory_order_relaxed); });
  row("Counter::add", [&](int) { counter.add(); });
  row("Histogram::record_ns", [&](int i) { histogram.record_ns(i); });
  // As at the end of each call.
  rpc::PeerCallsHandle handle;
  row("PeerCalls::made, with the search for the function",
      [&](int) { handle.in(calls, worker).made(function, absl::StatusCode::kOk, 5'000); });
  row("PeerCalls::served, with the search for the function",
      [&](int) { handle.in(calls, worker).served(function, absl::StatusCode::kOk, 500, 3'000); });
}

// Two workers in this process.
struct Pair {
  explicit Pair(bool with_metrics) {
    rpc::RpcBackendOptions options;
    options.metrics = with_metrics;
    options.store = std::make_shared<store::HashStore>();
    std::thread other([&] { callee = rpc::Agent::start("callee", 1, 2, options); });
    caller = rpc::Agent::start("caller", 0, 2, options);
    other.join();
  }
  ~Pair() {
    std::thread other([&] { callee->shutdown(); });
    caller->shutdown();
    other.join();
  }
  // The mean time of so many calls, in nanoseconds.
  double call(int calls) const {
    const int64_t start = nanoseconds();
    for (int i = 0; i < calls; ++i) (void)caller->rpc_sync<&add>("callee", int64_t{1}, int64_t{2});
    return static_cast<double>(nanoseconds() - start) / calls;
  }
  std::shared_ptr<rpc::Agent> caller;
  std::shared_ptr<rpc::Agent> callee;
};

// The time of a call in two groups.
struct Times {
  double a = 0;
  double b = 0;
};

// Two new groups of two workers, the first one with metrics if `metrics_a`, the second one if `metrics_b`.
// They call in turns for a short time each, and the groups are made and begin in an order that changes.
Times measure_groups(bool metrics_a, bool metrics_b, bool b_first) {
  constexpr int kTurns = 300;
  constexpr int kCalls = 100;
  std::unique_ptr<Pair> a, b;
  if (b_first) b = std::make_unique<Pair>(metrics_b);
  a = std::make_unique<Pair>(metrics_a);
  if (b == nullptr) b = std::make_unique<Pair>(metrics_b);
  std::vector<double> times_a, times_b;
  for (int turn = -10; turn < kTurns; ++turn) {
    const bool first = turn % 2 == 0;
    Times times;
    for (const bool is_a : {first, !first}) (is_a ? times.a : times.b) = (is_a ? *a : *b).call(kCalls);
    if (turn < 0) continue;  // Warms both up.
    times_a.push_back(times.a);
    times_b.push_back(times.b);
  }
  return {median(times_a), median(times_b)};
}

// The medians over all rounds, and the difference in percent with its quartiles.
void compare(const char* what, bool metrics_a, int rounds) {
  std::vector<double> a, b;
  std::vector<float> differences;
  for (int round = 0; round < rounds; ++round) {
    const Times times = measure_groups(metrics_a, /*metrics_b=*/false, /*b_first=*/round % 2 == 1);
    a.push_back(times.a);
    b.push_back(times.b);
    differences.push_back(static_cast<float>((times.a / times.b - 1) * 100));
  }
  std::printf("%-52s %6.0f ns and %.0f ns without; difference %+.2f %% (quartiles %+.2f and %+.2f)\n", what,
              median(a), median(b), percentile(differences, 0.5), percentile(differences, 0.25),
              percentile(differences, 0.75));
}

void measure_calls(int rounds) {
  compare("a call with metrics", /*metrics_a=*/true, rounds);
  // How much the measurement itself varies.
  compare("a call without metrics, for comparison", /*metrics_a=*/false, rounds);
}

}  // namespace
}  // namespace gradwire::bench

int main(int argc, char** argv) {
  try {
    gradwire::bench::measure_events();
    gradwire::bench::measure_calls(argc > 1 ? std::atoi(argv[1]) : 40);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "metrics_cost: %s\n", error.what());
    return 1;
  }
}
