#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "gradwire/proto/inspect.pb.h"
#include "gradwire/rpc/options.h"

namespace gradwire::rpc {

class Peers;

// Fills AgentState.peers. Peers that are suspect or lost, and those with connections, come first when there
// are more than `most`.
void read_peers(const Peers& peers, const FlowOptions& flow, uint32_t most, absl::Time now,
                proto::AgentState& state);

}  // namespace gradwire::rpc
