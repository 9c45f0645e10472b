#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/rpc/options.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/transport.h"

namespace gradwire::rpc {

// Makes the transports of an agent: loopback, for calls to itself, and those that `options.transports` names
// or, when it names none, all that work here, best first. One that does not work here is left out with a line
// in the log, unless it was asked for by name. InvalidArgument for an unknown name, Unavailable when none is
// left.
absl::StatusOr<std::vector<std::unique_ptr<transport::Transport>>> make_transports(
    const RpcBackendOptions& options, const std::shared_ptr<transport::EventLoop>& loop);

}  // namespace gradwire::rpc
