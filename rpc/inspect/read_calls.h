#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "gradwire/proto/inspect.pb.h"
#include "gradwire/rpc/callee/turn_waits.h"
#include "gradwire/rpc/flight/call_report.h"

namespace gradwire::rpc {

// Fills the lists of calls in `state` from the open calls, services included: the `most` oldest ones, and the
// callees with the most calls. `now`: on Clock::system().
void read_calls(OpenCalls calls, const TurnWaits& turns, uint32_t most, absl::Time now,
                proto::AgentState& state);

}  // namespace gradwire::rpc
