#pragma once

#include "gradwire/proto/inspect.pb.h"
#include "gradwire/rpc/agent/runtime.h"

namespace gradwire::rpc {

class Peers;

// Fills AgentState.flight with the part of the flight records that the question wants (proto/inspect.proto).
void read_flight(const AgentRuntime& runtime, const Peers& peers, const proto::FlightQuestion& question,
                 proto::FlightPart& part);

}  // namespace gradwire::rpc
