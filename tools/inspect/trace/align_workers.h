#pragma once

#include <vector>

#include "gradwire/tools/inspect/clock/clock_fit.h"
#include "gradwire/tools/inspect/trace/trace_span.h"

namespace gradwire::inspect {

// How the clock of a worker was mapped to the common one, which is the clock of the first worker.
struct WorkerClock {
  ClockFit fit;
  // False if no calls between workers connect this one to the first, or a clock was set meanwhile. Then `fit`
  // changes nothing.
  bool known = false;
};

// Maps the clocks of all workers to that of the first one, by the calls of which both ends are in the trace.
// Workers of one host, as their names of it say, share a clock.
std::vector<WorkerClock> align_workers(const std::vector<WorkerTrace>& workers);

}  // namespace gradwire::inspect
