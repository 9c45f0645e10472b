#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/tools/inspect/dump/flight_file.h"
#include "gradwire/tools/inspect/job_reader.h"

namespace gradwire::inspect {

// Waits for `period`, and returns what the workers of the job have recorded in it (FlightCollector). Appends
// a line to `errors` for each worker that is missing. Errors: those of JobReader.
absl::StatusOr<std::vector<tools::FlightFile>> record_job(const JobPlace& place, absl::Duration period,
                                                          std::string& errors);

}  // namespace gradwire::inspect
