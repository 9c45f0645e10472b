#pragma once

#include <vector>

#include "gradwire/tools/inspect/clock/clock_fit.h"
#include "gradwire/tools/inspect/dump/flight_file.h"
#include "gradwire/tools/inspect/trace/trace_span.h"

namespace gradwire::inspect {

// Only the first call for a request from outside of the job has recorded its trace id. This gives the id to
// the handler of that call and to all work below it: what the handler calls, and the backward passes that it
// runs.
void spread_traces(std::vector<WorkerTrace>& workers);

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

// The spans that flight records have: one WorkerTrace for each worker. Files of the same worker are merged.
// The operations of process groups go to the first worker of their process, or, if the process has none, to a
// trace with the group's title. What was open when a file was written ends at that time, without a result.
// WorkerTrace::overwritten counts the records that the files do not have any more.
std::vector<WorkerTrace> trace_of(const std::vector<tools::FlightFile>& files);

}  // namespace gradwire::inspect
