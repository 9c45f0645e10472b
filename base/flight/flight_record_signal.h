#pragma once

#include "absl/status/status.h"

namespace gradwire {

// After this call, each arrival of the signal (SIGUSR1, for example) writes the flight records of this
// process: those of its agents (docs/observability.md) and of its process groups. They go to the directory
// GRADWIRE_FLIGHT_DIR, or else to the log. The first call starts a thread that does the writing and lives as
// long as the process; the signal handler only wakes that thread. A further call adds another signal. Errors:
// InvalidArgument for a signal that cannot be caught.
absl::Status install_flight_record_signal(int signo);

// Number of times that the records have been written because of a signal; for tests.
int flight_records_written();

}  // namespace gradwire
