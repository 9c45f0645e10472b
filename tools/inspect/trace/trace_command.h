#pragma once

#include <string>
#include <vector>

namespace gradwire::inspect {

// `inspect trace [--out=FILE] PATH...`: makes one trace of the flight records of several workers
// (chrome_trace.h) and writes it to FILE. Appends what it did to `out`, and what it could not read to
// `errors`. Returns the exit status: 0; 1 if there is nothing to read or FILE cannot be written; 2 for a
// wrong command line.
int trace_command(const std::vector<std::string>& arguments, std::string& out, std::string& errors);

}  // namespace gradwire::inspect
