#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/rpc/membership/joining.h"
#include "gradwire/transport/transport.h"

namespace gradwire::rpc {

using Transports = std::vector<std::unique_ptr<transport::Transport>>;

// Whether somebody listens where the worker of `record` said so; waits for up to `timeout` at each of its
// addresses. `asks`: the name of the one who wants to know.
Joining::Life look_for(const Transports& transports, const std::string& asks,
                       const proto::WorkerRecord& record, absl::Duration timeout);

}  // namespace gradwire::rpc
