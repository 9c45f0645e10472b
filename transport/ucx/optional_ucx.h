#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/transport.h"
#include "gradwire/transport/ucx/ucx_options.h"

namespace gradwire::transport {

// Creates the transport over UCX (ucx_transport.h), for code that may be built without it. InvalidArgument if
// this build does not include it (build with --config=ucx); FailedPrecondition for credentials that it cannot
// use (check_ucx_credentials()); Unavailable if UCX does not start.
absl::StatusOr<std::unique_ptr<Transport>> make_ucx_transport_if_built(UcxOptions options,
                                                                       std::shared_ptr<EventLoop> loop);

}  // namespace gradwire::transport
