#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "gradwire/proto/inspect.pb.h"
#include "gradwire/rpc/callee/served_calls.h"
#include "gradwire/rpc/core/options.h"
#include "gradwire/rpc/flight/call_report.h"
#include "gradwire/rpc/runtime/runtime.h"

namespace gradwire::rpc {

// Fills the lists of calls in `state` from the open calls, services included: the `most` oldest ones, and the
// callees with the most calls. `now`: on Clock::system().
void read_calls(OpenCalls calls, const TurnWaits& turns, uint32_t most, absl::Time now,
                proto::AgentState& state);

class Peers;

// Fills AgentState.flight with the part of the flight records that the question wants (proto/inspect.proto).
void read_flight(const AgentRuntime& runtime, const Peers& peers, const proto::FlightQuestion& question,
                 proto::FlightPart& part);

// Fills AgentState.groups with at most `most` process groups of this process, by their flight recorders.
void read_groups(uint32_t most, proto::AgentState& state);

class Peers;

// Fills AgentState.peers. Peers that are suspect or lost, and those with connections, come first when there
// are more than `most`.
void read_peers(const Peers& peers, const FlowOptions& flow, uint32_t most, absl::Time now,
                proto::AgentState& state);

class ReferenceDriver;

// Fills AgentState.rrefs and AgentState.held: the `most` largest groups. Visits at most kMostVisited
// references of each kind. `now`: on Clock::system().
void read_rrefs(const ReferenceDriver& driver, uint32_t most, absl::Time now, proto::AgentState& state);

}  // namespace gradwire::rpc
