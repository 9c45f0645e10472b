#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "gradwire/proto/inspect.pb.h"

namespace gradwire::rpc {

class ReferenceDriver;

// Fills AgentState.rrefs and AgentState.held: the `most` largest groups. Visits at most kMostVisited
// references of each kind. `now`: on Clock::system().
void read_rrefs(const ReferenceDriver& driver, uint32_t most, absl::Time now, proto::AgentState& state);

}  // namespace gradwire::rpc
