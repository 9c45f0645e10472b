#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/rpc/membership/joining.h"
#include "gradwire/transport/transport.h"

namespace gradwire::rpc {

using Transports = std::vector<std::unique_ptr<transport::Transport>>;

// Asks whether the worker of `record` is alive: sends a Hello with incarnation 0 to each of its addresses,
// and waits up to `timeout` for each. `asker`: the name of the worker that asker.
Joining::Life check_life(const Transports& transports, const std::string& asker,
                         const proto::WorkerRecord& record, absl::Duration timeout);

}  // namespace gradwire::rpc
