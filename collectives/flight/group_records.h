#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "gradwire/base/flight/flight_source.h"

namespace gradwire::collectives {

// Writes the flight record of the process group of this process with the lowest number that is not below
// `number`, from 1. Returns its number. Returns 0, and writes nothing, if no group has such a number. A group
// has one number from its beginning to its end, so a reader that asks for the next numbers finds each group
// once. Thread-safe. Holds the lock of the list of groups, which groups take when they begin and end.
uint64_t write_group_record(uint64_t number, FlightSink& sink, absl::string_view reason);

}  // namespace gradwire::collectives
