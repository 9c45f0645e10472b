#include "gradwire/tools/inspect/trace/flight_trace.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/string_view.h"
#include "gradwire/base/stable_hash.h"

namespace gradwire::inspect {
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

TraceSpan span_of(const FlightCall& call, const FlightFile& file) {
  TraceSpan span;
  span.kind = call.made ? SpanKind::kCall : SpanKind::kHandler;
  span.name = call.name;
  const auto peer = file.workers.find(call.peer);
  if (peer != file.workers.end()) span.peer = peer->second;
  span.result = result_of(call.ended, call.code);
  set_period(span, call.began, call.ended, file);
  if (!call.made && call.started > call.began) span.ran = call.started;
  span.id = {call.identity.caller, call.identity.number};
  span.parent = parent_of(call.parent);
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
  WorkerTrace& of_worker(const FlightFile& file) {
    const auto [found, is_new] = workers_.try_emplace(file.incarnation, traces_.size());
    if (is_new) {
      add(file);
      processes_.try_emplace(file.process, found->second);
    }
    return traces_[found->second];
  }
  WorkerTrace& of_group(const FlightFile& file) {
    const auto [found, is_new] = processes_.try_emplace(file.process, traces_.size());
    if (is_new) add(file);
    return traces_[found->second];
  }
  std::vector<WorkerTrace> take() { return std::move(traces_); }

 private:
  void add(const FlightFile& file) {
    WorkerTrace trace;
    trace.name = file.title;
    trace.incarnation = file.incarnation;
    trace.process = file.process;
    traces_.push_back(std::move(trace));
  }

  std::vector<WorkerTrace> traces_;
  // Indices of traces, by incarnation and by process.
  std::map<uint64_t, std::size_t> workers_;
  std::map<int64_t, std::size_t> processes_;
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

}  // namespace

std::vector<WorkerTrace> trace_of(const std::vector<FlightFile>& files) {
  Traces traces;
  // Workers first: groups join them.
  for (const bool groups : {false, true}) {
    for (const FlightFile& file : files) {
      if (file.is_group != groups) continue;
      WorkerTrace& trace = groups ? traces.of_group(file) : traces.of_worker(file);
      for (const FlightCall& call : file.calls) trace.spans.push_back(span_of(call, file));
      for (const FlightPass& pass : file.passes) trace.spans.push_back(span_of(pass, file));
      for (const FlightCollective& each : file.collectives) trace.spans.push_back(span_of(each, file));
    }
  }
  std::vector<WorkerTrace> workers = traces.take();
  for (WorkerTrace& worker : workers) keep_longest(worker.spans);
  return workers;
}

}  // namespace gradwire::inspect
