// Reads the first line of the input as the header traceparent, and the others as tracestate.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gradwire/rpc/trace/trace_context.h"
#include "gradwire/tests/fuzz/fuzzing.h"

using gradwire::fuzzing::require;
using gradwire::rpc::TraceContext;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const std::pair<absl::string_view, absl::string_view> headers =
      absl::StrSplit(text, absl::MaxSplits('\n', 1));
  const absl::StatusOr<TraceContext> trace = TraceContext::parse(headers.first, headers.second);
  if (!trace.ok()) {
    require(absl::IsInvalidArgument(trace.status()), "an error that is not InvalidArgument");
    return 0;
  }
  require(trace->span != 0 && (trace->trace_high != 0 || trace->trace_low != 0), "an id of zeros");
  require(trace->state.size() <= TraceContext::kMaxState, "a state that is too long");
  require(
      std::all_of(trace->state.begin(), trace->state.end(), [](char c) { return absl::ascii_isprint(c); }),
      "a state with bytes that are not text");
  // The next service reads the same.
  const absl::StatusOr<TraceContext> next = TraceContext::parse(trace->traceparent(), trace->state);
  require(next.ok() && *next == *trace, "a context that changes on its way");
  return 0;
}
