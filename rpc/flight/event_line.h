#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "gradwire/base/flight/flight_source.h"
#include "gradwire/base/flight/json_line.h"
#include "gradwire/rpc/flight/call_parent.h"
#include "gradwire/rpc/flight/call_recorder.h"
#include "gradwire/rpc/worker.h"

// The lines of an agent's flight record (docs/observability.md). All of it is async-signal-safe, once
// boot_id() has been called.
namespace gradwire::rpc {

// Begins the first line. `recorded`: the number of events since the start.
JsonLine agent_header(const Worker& worker, const CallRecorder& recorder, uint64_t recorded,
                      absl::string_view reason, FlightDump dump);
// The line of an event of the worker with the incarnation `self`, but for its end.
JsonLine event_line(const CallEvent& event, uint64_t self);
void add_parent(JsonLine& line, const CallParent& parent);
// The line of a member of the group, but for its end.
JsonLine member_line(const Worker& member);

}  // namespace gradwire::rpc
