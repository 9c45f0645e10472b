#pragma once

#include <algorithm>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/trace/trace_context.h"

namespace gradwire::rpc {

inline void to_proto(const TraceContext& trace, proto::CallTrace& out) {
  out.set_trace_high(trace.trace_high);
  out.set_trace_low(trace.trace_low);
  out.set_span(trace.span);
  out.set_flags(trace.flags);
  out.set_state(trace.state);
}

// Returns nullptr if the request has none. Error: InvalidArgument if it is malformed.
inline absl::StatusOr<std::shared_ptr<const TraceContext>> trace_of(const proto::Request& request) {
  if (!request.has_trace()) return nullptr;
  const proto::CallTrace& in = request.trace();
  const auto is_printable = [](char c) { return absl::ascii_isprint(c); };
  if ((in.trace_high() == 0 && in.trace_low() == 0) || in.span() == 0 || in.flags() > 1 ||
      in.state().size() > TraceContext::kMaxState ||
      !std::all_of(in.state().begin(), in.state().end(), is_printable)) {
    return absl::InvalidArgumentError("malformed trace of a request (CallTrace in proto/rpc.proto)");
  }
  return std::make_shared<const TraceContext>(TraceContext{
      in.trace_high(), in.trace_low(), in.span(), static_cast<uint8_t>(in.flags()), std::string(in.state())});
}

}  // namespace gradwire::rpc
