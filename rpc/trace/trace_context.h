#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/rpc/core/call_context.h"

namespace gradwire::rpc {

// The place of a piece of work in a trace over several services, as W3C Trace Context defines it
// (https://www.w3.org/TR/trace-context/). A call passes the context of its caller on: in the handler it is
// the current one, with the span of the call. The flight recorder and `tools/inspect trace` show the trace
// id. Gradwire decides nothing by it and starts no trace of its own.
struct TraceContext {
  // The most bytes of `state`.
  static constexpr std::size_t kMaxState = 512;

  uint64_t trace_high = 0;  // The first half of the trace id. The halves are not both 0.
  uint64_t trace_low = 0;   // The second half.
  // The span that makes the calls; not 0.
  uint64_t span = 0;
  // Bit 0: the caller records the trace ("sampled").
  uint8_t flags = 0;
  // The value of the header tracestate, in which systems for tracing keep data of their own. Printable ASCII.
  std::string state;

  // Reads the values of the headers traceparent and tracestate. Several headers tracestate are joined by
  // commas. A malformed tracestate is left out; one that is too long loses members, as the standard says.
  // Error: InvalidArgument for a malformed traceparent.
  static absl::StatusOr<TraceContext> parse(absl::string_view traceparent, absl::string_view tracestate = {});
  // The context in which the calling thread makes calls: that of the innermost TraceScope or of the call that
  // it serves; nullptr without one. It stays current in continuations, after co_await and in then().
  static std::shared_ptr<const TraceContext> current() { return ExecutionSlot<TraceContext>::get(); }

  // The value of the header traceparent, for a request to another service.
  std::string traceparent() const;
  // 32 hexadecimal digits.
  std::string trace_id() const;
  // The same trace inside the handler of a call, which is a span of its own.
  TraceContext inside(const CallIdentity& call) const;

  friend bool operator==(const TraceContext&, const TraceContext&) = default;
};

// While the object lives, calls that the thread makes belong to this trace, for example to that of a request
// that the program serves.
//   const TraceScope scope(*TraceContext::parse(traceparent, tracestate));
class TraceScope {
 public:
  // Makes the trace current.
  explicit TraceScope(TraceContext context)
      : scope_(std::make_shared<const TraceContext>(std::move(context))) {}
  // Does nothing with nullptr: the trace that is current stays current.
  explicit TraceScope(std::shared_ptr<const TraceContext> context)
      : scope_(context != nullptr ? std::move(context) : TraceContext::current()) {}

 private:
  const ExecutionSlot<TraceContext>::Scope scope_;
};

}  // namespace gradwire::rpc
