#pragma once

#include <vector>

#include "gradwire/tools/inspect/dump/flight_file.h"
#include "gradwire/tools/inspect/trace/trace_span.h"

namespace gradwire::inspect {

// The spans that flight records have: one WorkerTrace for each worker. Files of the same worker are merged.
// The operations of process groups go to the first worker of their process, or, if the process has none, to a
// trace with the group's title. What was open when a file was written ends at that time, without a result.
// WorkerTrace::overwritten counts the records that the files do not have any more.
std::vector<WorkerTrace> trace_of(const std::vector<tools::FlightFile>& files);

}  // namespace gradwire::inspect
