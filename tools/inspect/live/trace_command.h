#pragma once

#include <string>
#include <vector>

namespace gradwire::inspect {

// `inspect trace` (tools/inspect/input/options.h): makes one trace (chrome_trace.h) of flight records, or of
// what a running job does for some time. Appends what it did to `out`, and what it could not read to
// `errors`. Returns the exit status: 0; 1 if there is nothing to read, the job cannot be read or the trace
// cannot be written; 2 for a wrong command line.
int trace_command(const std::vector<std::string>& arguments, std::string& out, std::string& errors);

}  // namespace gradwire::inspect
