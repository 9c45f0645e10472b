#include "gradwire/tools/inspect/trace/flight_trace.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/tools/inspect/clock/clock_tree.h"

namespace gradwire::inspect {
namespace {

using SpanIndex = std::multimap<CallIdentity, TraceSpan*>;

bool is_call(const TraceSpan& span) {
  return span.kind == SpanKind::kCall || span.kind == SpanKind::kHandler;
}

}  // namespace

// Visits each span at most once, so malformed records, in which a call is its own parent, end too.
void spread_traces(std::vector<WorkerTrace>& workers) {
  // 1. Index the spans. Calls and passes have identities of their own kinds.
  SpanIndex calls, passes, children;
  std::vector<const TraceSpan*> found;
  for (WorkerTrace& worker : workers) {
    for (TraceSpan& span : worker.spans) {
      if (is_call(span)) calls.emplace(span.id, &span);
      if (span.kind == SpanKind::kPass) passes.emplace(span.id, &span);
      if (span.parent != CallIdentity()) children.emplace(span.parent, &span);
      if (span.trace != CallIdentity()) found.push_back(&span);
    }
  }
  // 2. From the spans that have a trace id, go to the other parts of the same work, and to the work below.
  while (!found.empty()) {
    const TraceSpan& above = *found.back();
    found.pop_back();
    const auto give = [&](const SpanIndex& index) {
      const auto [begin, end] = index.equal_range(above.id);
      for (auto entry = begin; entry != end; ++entry) {
        TraceSpan& span = *entry->second;
        if (span.trace != CallIdentity()) continue;
        span.trace = above.trace;
        found.push_back(&span);
      }
    };
    if (above.id == CallIdentity()) continue;
    give(is_call(above) ? calls : passes);
    if (is_call(above)) give(children);
  }
}

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

namespace {

using tools::FlightCall;
using tools::FlightCollective;
using tools::FlightFile;
using tools::FlightParent;
using tools::FlightPass;

CallIdentity parent_of(const FlightParent& parent) {
  return parent.kind == FlightParent::Kind::kCall ? CallIdentity{parent.worker, parent.number}
                                                  : CallIdentity();
}

CallIdentity trace_of(const FlightParent& parent) {
  return parent.kind == FlightParent::Kind::kTrace ? CallIdentity{parent.worker, parent.number}
                                                   : CallIdentity();
}

// The period of something that began and perhaps ended before the file was written.
void set_period(TraceSpan& span, int64_t began, int64_t ended, const FlightFile& file) {
  span.begin = span.ran = began;
  span.end = std::max(began, ended != 0 ? ended : file.clock_ns);
}

// A record without an end has no result. One whose code is missing ended well.
std::string result_of(int64_t ended, const std::string& code) {
  if (ended == 0) return "";
  return code.empty() ? "OK" : code;
}

using Names = std::map<uint64_t, std::string>;

// The names of all workers, by incarnation. The file of a crash has only its own.
Names names_of(const std::vector<FlightFile>& files) {
  Names names;
  for (const FlightFile& file : files) names.insert(file.workers.begin(), file.workers.end());
  return names;
}

TraceSpan span_of(const FlightCall& call, const FlightFile& file, const Names& names) {
  TraceSpan span;
  span.kind = call.made ? SpanKind::kCall : SpanKind::kHandler;
  span.name = call.name;
  const auto peer = names.find(call.peer);
  if (peer != names.end()) span.peer = peer->second;
  span.result = result_of(call.ended, call.code);
  set_period(span, call.began, call.ended, file);
  if (!call.made && call.started > call.began) span.ran = call.started;
  span.id = {call.identity.caller, call.identity.number};
  span.parent = parent_of(call.parent);
  span.trace = trace_of(call.parent);
  return span;
}

TraceSpan span_of(const FlightPass& pass, const FlightFile& file) {
  TraceSpan span;
  span.kind = SpanKind::kPass;
  span.name = "backward pass";
  span.result = result_of(pass.ended, pass.code);
  set_period(span, pass.began, pass.ended, file);
  span.id = {pass.root, pass.number};
  span.parent = parent_of(pass.parent);
  span.trace = trace_of(pass.parent);
  return span;
}

// `group "world", rank 1 of 4` without what differs between the ranks.
absl::string_view group_of(absl::string_view title) { return title.substr(0, title.rfind(", rank ")); }

TraceSpan span_of(const FlightCollective& collective, const FlightFile& file) {
  TraceSpan span;
  span.kind = SpanKind::kCollective;
  span.name = collective.operation;
  span.peer = std::string(group_of(file.title));
  span.result = result_of(collective.ended, collective.code);
  set_period(span, collective.began, collective.ended, file);
  // A message between two ranks has no number that both know.
  if (collective.sequence >= 0)
    span.id = {stable_hash(span.peer) | 1, static_cast<uint64_t>(collective.sequence)};
  return span;
}

class Traces {
 public:
  // The index of the trace to which the file belongs.
  std::size_t of_worker(const FlightFile& file) {
    const auto [found, is_new] = workers_.try_emplace(file.incarnation, traces_.size());
    if (is_new) {
      add(file);
      processes_.try_emplace({file.boot, file.process}, found->second);
    }
    return found->second;
  }
  std::size_t of_group(const FlightFile& file) {
    const auto [found, is_new] = processes_.try_emplace({file.boot, file.process}, traces_.size());
    if (is_new) add(file);
    return found->second;
  }
  WorkerTrace& operator[](std::size_t index) { return traces_[index]; }
  std::vector<WorkerTrace> take() { return std::move(traces_); }

 private:
  void add(const FlightFile& file) {
    WorkerTrace trace;
    trace.name = file.title;
    trace.incarnation = file.incarnation;
    trace.process = file.process;
    trace.host = file.boot;
    if (file.wall_ns != 0 && file.clock_ns != 0) trace.wall_ahead = file.wall_ns - file.clock_ns;
    traces_.push_back(std::move(trace));
  }

  std::vector<WorkerTrace> traces_;
  // Indices of traces, by incarnation and by process.
  std::map<uint64_t, std::size_t> workers_;
  std::map<std::pair<std::string, int64_t>, std::size_t> processes_;
};

// A file that was written later says more about the same work.
void keep_longest(std::vector<TraceSpan>& spans) {
  const auto key = [](const TraceSpan& span) { return std::tie(span.kind, span.id, span.begin, span.name); };
  std::stable_sort(spans.begin(), spans.end(), [&](const TraceSpan& a, const TraceSpan& b) {
    if (key(a) != key(b)) return key(a) < key(b);
    return std::make_pair(!a.result.empty(), a.end) > std::make_pair(!b.result.empty(), b.end);
  });
  const auto same = [&](const TraceSpan& a, const TraceSpan& b) {
    return a.id != CallIdentity() && key(a) == key(b);
  };
  spans.erase(std::unique(spans.begin(), spans.end(), same), spans.end());
}

// Counts what the files of one worker or group do not have. The newest file counts: it has what was
// overwritten before an older one was written.
class Losses {
 public:
  void add(const FlightFile& file, WorkerTrace& trace, std::size_t index) {
    trace.damaged += file.bad_lines + (file.truncated ? 1 : 0);
    const auto [found, is_new] = newest_.try_emplace({index, file.title});
    if (!is_new && found->second.written >= file.clock_ns) return;
    trace.overwritten -= found->second.overwritten;
    found->second = {file.clock_ns, file.recorded > file.capacity ? file.recorded - file.capacity : 0};
    // Numbers of a file may be anything.
    found->second.overwritten =
        std::min(found->second.overwritten, kMost - std::min(kMost, trace.overwritten));
    trace.overwritten += found->second.overwritten;
  }

 private:
  static constexpr uint64_t kMost = uint64_t{1} << 53;
  struct File {
    int64_t written = 0;
    uint64_t overwritten = 0;
  };
  std::map<std::pair<std::size_t, std::string>, File> newest_;
};

}  // namespace

std::vector<WorkerTrace> trace_of(const std::vector<FlightFile>& files) {
  Traces traces;
  Losses losses;
  const Names names = names_of(files);
  // Workers first: groups join them.
  for (const bool groups : {false, true}) {
    for (const FlightFile& file : files) {
      if (file.is_group != groups) continue;
      const std::size_t index = groups ? traces.of_group(file) : traces.of_worker(file);
      WorkerTrace& trace = traces[index];
      losses.add(file, trace, index);
      for (const FlightCall& call : file.calls) trace.spans.push_back(span_of(call, file, names));
      for (const FlightPass& pass : file.passes) trace.spans.push_back(span_of(pass, file));
      for (const FlightCollective& each : file.collectives) trace.spans.push_back(span_of(each, file));
    }
  }
  std::vector<WorkerTrace> workers = traces.take();
  for (WorkerTrace& worker : workers) keep_longest(worker.spans);
  spread_traces(workers);
  return workers;
}

}  // namespace gradwire::inspect
