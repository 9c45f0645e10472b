#pragma once

#include <grpcpp/server_context.h>

#include <memory>

#include "gradwire/rpc/trace/trace_context.h"

namespace gradwire::gateway {

// The trace to which an RPC of a client belongs, by its metadata traceparent and tracestate; nullptr if it
// has none. As W3C Trace Context demands, a malformed traceparent, or more than one, counts as none.
std::shared_ptr<const rpc::TraceContext> trace_of(const grpc::CallbackServerContext& context);

}  // namespace gradwire::gateway
