#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/tools/inspect/trace/trace_span.h"

namespace gradwire::inspect {

// Aligns the clocks of the workers (flight_trace.h), and writes one trace (chrome_trace.h) to the file
// `path`, which only this user can read, in place of an earlier one. Returns lines for the user, without
// their ends: what was written, how exact the clocks are, and what is missing. Errors: those of the file
// system, with the path.
absl::StatusOr<std::vector<std::string>> write_trace(const std::vector<WorkerTrace>& workers,
                                                     const std::string& path);

}  // namespace gradwire::inspect
