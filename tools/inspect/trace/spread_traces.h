#pragma once

#include <vector>

#include "gradwire/tools/inspect/trace/trace_span.h"

namespace gradwire::inspect {

// Only the first call for a request from outside of the job has recorded its trace id. This gives the id to
// the handler of that call and to all work below it: what the handler calls, and the backward passes that it
// runs.
void spread_traces(std::vector<WorkerTrace>& workers);

}  // namespace gradwire::inspect
