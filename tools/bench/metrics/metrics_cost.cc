// Measures what metrics cost: one event of each kind, and a call with and without them. The call adds two
// integers on another worker: it is shorter than any call with tensors, so the share of the metrics is the
// largest. Both workers are in this process. The rounds alternate, so that a change of the machine's speed
// meets both.
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
#include "gradwire/rpc/agent.h"
#include "gradwire/rpc/call.h"
#include "gradwire/rpc/metrics/call_metrics.h"
#include "gradwire/rpc/metrics/peer_calls.h"
#include "gradwire/rpc/metrics/peer_calls_handle.h"
#include "gradwire/store/hash_store.h"
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
  // The median time of a call, in microseconds.
  double call(int calls) const {
    std::vector<double> times;
    for (int i = 0; i < calls; ++i) {
      const int64_t start = nanoseconds();
      (void)caller->rpc_sync<&add>("callee", int64_t{1}, int64_t{2});
      times.push_back(static_cast<double>(nanoseconds() - start) / 1'000);
    }
    std::nth_element(times.begin(), times.begin() + calls / 2, times.end());
    return times[static_cast<std::size_t>(calls) / 2];
  }
  std::shared_ptr<rpc::Agent> caller;
  std::shared_ptr<rpc::Agent> callee;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void measure_calls(int rounds) {
  const Pair with(true);
  const Pair without(false);
  std::vector<double> on, off, differences;
  for (int round = -2; round < rounds; ++round) {
    // In turns, the first one changes too.
    const bool first = round % 2 == 0;
    double times[2];
    for (const bool metrics : {first, !first}) times[metrics] = (metrics ? with : without).call(2'000);
    if (round < 0) continue;  // Warms both up.
    on.push_back(times[1]);
    off.push_back(times[0]);
    differences.push_back((times[1] / times[0] - 1) * 100);
  }
  std::printf(
      "call p50: %.3f us with metrics, %.3f us without (the best rounds: %.3f and %.3f); "
      "median difference of a round %+.2f %%\n",
      median(on), median(off), *std::min_element(on.begin(), on.end()),
      *std::min_element(off.begin(), off.end()), median(differences));
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
