#pragma once

#include <cstdint>

#include "gradwire/proto/inspect.pb.h"

namespace gradwire::rpc {

// Fills AgentState.groups with at most `most` process groups of this process, by their flight recorders.
void read_groups(uint32_t most, proto::AgentState& state);

}  // namespace gradwire::rpc
