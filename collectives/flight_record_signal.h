#pragma once

#include "gradwire/base/flight/flight_record_signal.h"

namespace gradwire::collectives {

// The signal that has the flight records of all groups and agents of this process written
// (gradwire/base/flight/flight_record_signal.h).
using gradwire::flight_records_written;
using gradwire::install_flight_record_signal;

}  // namespace gradwire::collectives
