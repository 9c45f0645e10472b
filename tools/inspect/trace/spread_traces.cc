#include "gradwire/tools/inspect/trace/spread_traces.h"

#include <map>
#include <vector>

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

}  // namespace gradwire::inspect
