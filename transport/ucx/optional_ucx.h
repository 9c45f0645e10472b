#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/transport.h"

namespace gradwire::transport {

// Creates the transport over UCX (ucx_transport.h), for code that may be built without it. InvalidArgument if
// this build does not include it (build with --config=ucx); Unavailable if UCX does not start.
absl::StatusOr<std::unique_ptr<Transport>> make_ucx_transport_if_built(const Limits& limits,
                                                                       std::shared_ptr<EventLoop> loop);

}  // namespace gradwire::transport
