#include "gradwire/tools/inspect/trace/align_workers.h"

#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "gradwire/tools/inspect/clock/clock_tree.h"

namespace gradwire::inspect {
namespace {

using Pair = std::pair<std::size_t, std::size_t>;

struct End {
  std::size_t worker = 0;
  const TraceSpan* span = nullptr;
};

// A call that has timed out, or was cancelled, has not ended with the arrival of its answer.
bool has_ended(const TraceSpan& span) { return span.result == "OK" && span.id != CallIdentity(); }

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

}  // namespace

std::vector<WorkerClock> align_workers(const std::vector<WorkerTrace>& workers) {
  ClockFits fits;
  for (const auto& [pair, samples] : samples_of(workers)) {
    if (const std::optional<ClockFit> fit = fit_clocks(samples)) fits.emplace(pair, *fit);
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
