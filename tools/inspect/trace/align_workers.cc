#include "gradwire/tools/inspect/trace/align_workers.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "gradwire/tools/inspect/clock/clock_tree.h"

namespace gradwire::inspect {
namespace {

// More samples of one pair of workers hardly improve the fit, whose time grows with their number.
constexpr std::size_t kMostSamples = 2000;

using Pair = std::pair<std::size_t, std::size_t>;

struct End {
  std::size_t worker = 0;
  const TraceSpan* span = nullptr;
};

bool has_ended(const TraceSpan& span) { return !span.result.empty() && span.id != CallIdentity(); }

// For each pair of caller and callee, the calls of which both ends are known.
std::map<Pair, std::vector<ClockSample>> samples_of(const std::vector<WorkerTrace>& workers) {
  std::map<CallIdentity, End> calls;
  for (std::size_t worker = 0; worker < workers.size(); ++worker) {
    for (const TraceSpan& span : workers[worker].spans) {
      if (span.kind == SpanKind::kCall && has_ended(span)) calls.emplace(span.id, End{worker, &span});
    }
  }
  std::map<Pair, std::vector<ClockSample>> samples;
  for (std::size_t callee = 0; callee < workers.size(); ++callee) {
    for (const TraceSpan& span : workers[callee].spans) {
      if (span.kind != SpanKind::kHandler || !has_ended(span)) continue;
      const auto call = calls.find(span.id);
      if (call == calls.end() || call->second.worker == callee) continue;
      const TraceSpan& caller = *call->second.span;
      samples[{call->second.worker, callee}].push_back({caller.begin, span.begin, span.end, caller.end});
    }
  }
  return samples;
}

// The fastest calls have the closest bounds. Those of all parts of the trace show the drift.
std::vector<ClockSample> best_of(std::vector<ClockSample> samples) {
  if (samples.size() <= kMostSamples) return samples;
  std::sort(samples.begin(), samples.end(), [](const auto& a, const auto& b) { return a.sent < b.sent; });
  const auto on_the_way = [](const ClockSample& sample) {
    return static_cast<double>(sample.received) - static_cast<double>(sample.sent) -
           (static_cast<double>(sample.answered) - static_cast<double>(sample.arrived));
  };
  std::vector<ClockSample> best;
  for (std::size_t part = 0; part < kMostSamples; ++part) {
    const std::size_t begin = samples.size() * part / kMostSamples;
    const std::size_t end = samples.size() * (part + 1) / kMostSamples;
    best.push_back(
        *std::min_element(samples.begin() + static_cast<std::ptrdiff_t>(begin),
                          samples.begin() + static_cast<std::ptrdiff_t>(end),
                          [&](const auto& a, const auto& b) { return on_the_way(a) < on_the_way(b); }));
  }
  return best;
}

}  // namespace

std::vector<WorkerClock> align_workers(const std::vector<WorkerTrace>& workers) {
  ClockFits fits;
  for (auto& [pair, samples] : samples_of(workers)) {
    if (const std::optional<ClockFit> fit = fit_clocks(best_of(std::move(samples)))) fits.emplace(pair, *fit);
  }
  std::map<std::string, std::size_t> first_of_host;
  for (std::size_t worker = 0; worker < workers.size(); ++worker) {
    if (workers[worker].host.empty()) continue;
    const auto [first, is_new] = first_of_host.emplace(workers[worker].host, worker);
    if (!is_new) fits[{worker, first->second}] = ClockFit();
  }

  std::vector<WorkerClock> clocks;
  for (const std::optional<ClockFit>& fit : align_clocks(workers.size(), fits, 0)) {
    clocks.push_back({fit.value_or(ClockFit()), fit.has_value()});
  }
  return clocks;
}

}  // namespace gradwire::inspect
