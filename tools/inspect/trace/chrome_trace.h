#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/tools/inspect/trace/flight_trace.h"
#include "gradwire/tools/inspect/trace/trace_span.h"

namespace gradwire::inspect {

// Distributes periods {begin, end} over lanes, so that the periods of a lane do not overlap, and few lanes
// are used. Returns the lane of each period, from 0. A period that is in no other one's way keeps to low
// lanes.
std::vector<std::size_t> assign_lanes(const std::vector<std::pair<int64_t, int64_t>>& periods);

// Writes the spans of all workers as one JSON object in the format "Trace Event", which Perfetto
// (ui.perfetto.dev) and chrome://tracing read. Each worker is a process; its spans are in lanes, by their
// kind. Arrows lead
//   from a call to its handler, and from the end of the handler to the end of the call,
//   from a handler to the calls that it makes,
//   from the first worker of a backward pass to the others,
//   between the ranks of a collective, from the one that came last to those that waited for it.
// Times are microseconds since the first span, by the clock of the first worker. "otherData" has the time
// that is 0, how far the clock of each worker may be off, and how many records were overwritten before they
// were read, for each worker with such ones; its process has a label with the number.
//
// `clocks`: one for each worker (align_workers).
std::string chrome_trace(const std::vector<WorkerTrace>& workers, const std::vector<WorkerClock>& clocks);

}  // namespace gradwire::inspect
