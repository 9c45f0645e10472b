#pragma once

#include "absl/status/status.h"

namespace gradwire::collectives {

// From now on the signal (SIGUSR2, for example) has the flight records of all groups of this process written
// to the log, by a thread that this call starts and that lives as long as the process; the handler itself
// only wakes it. Another signal may be added by another call. Errors: InvalidArgument for a signal that
// cannot be caught.
absl::Status install_flight_record_signal(int signo);

// How often records have been written for a signal; for tests.
int flight_records_written();

}  // namespace gradwire::collectives
