#include <gtest/gtest.h>

#include <vector>

#include "gradwire/tools/inspect/trace/flight_trace.h"

namespace gradwire::inspect {
namespace {

constexpr CallIdentity kTrace = {0xA, 0xB};

TraceSpan span_of(SpanKind kind, CallIdentity id, CallIdentity parent = {}) {
  return {.kind = kind, .id = id, .parent = parent};
}

TEST(SpreadTraces, GoesToHandlersNestedCallsAndPasses) {
  std::vector<WorkerTrace> workers(3);
  TraceSpan first = span_of(SpanKind::kCall, {1, 7});
  first.trace = kTrace;
  workers[0].spans = {first, span_of(SpanKind::kCall, {1, 8})};
  workers[1].spans = {span_of(SpanKind::kHandler, {1, 7}), span_of(SpanKind::kHandler, {1, 8}),
                      span_of(SpanKind::kCall, {2, 1}, {1, 7}), span_of(SpanKind::kPass, {2, 1}, {1, 7}),
                      span_of(SpanKind::kCall, {2, 2}, {1, 8})};
  workers[2].spans = {span_of(SpanKind::kHandler, {2, 1}), span_of(SpanKind::kPass, {2, 1}),
                      span_of(SpanKind::kCall, {3, 1}, {2, 1}), span_of(SpanKind::kOperator, {})};
  spread_traces(workers);
  const auto traced = [&](std::size_t worker) {
    std::vector<bool> result;
    for (const TraceSpan& span : workers[worker].spans) result.push_back(span.trace == kTrace);
    return result;
  };
  EXPECT_EQ(traced(0), std::vector<bool>({true, false}));
  EXPECT_EQ(traced(1), std::vector<bool>({true, false, true, true, false}));
  EXPECT_EQ(traced(2), std::vector<bool>({true, true, true, false}));
}

TEST(SpreadTraces, ACallThatIsItsOwnParentEnds) {
  std::vector<WorkerTrace> workers(1);
  TraceSpan call = span_of(SpanKind::kCall, {1, 7}, {1, 7});
  call.trace = kTrace;
  workers[0].spans = {call, span_of(SpanKind::kCall, {1, 7}, {1, 7})};
  spread_traces(workers);
  EXPECT_EQ(workers[0].spans[1].trace, kTrace);
}

}  // namespace
}  // namespace gradwire::inspect
