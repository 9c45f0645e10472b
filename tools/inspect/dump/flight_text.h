#pragma once

#include <string>
#include <vector>

#include "gradwire/tools/inspect/dump/flight_file.h"
#include "gradwire/tools/inspect/dump/flight_join.h"

namespace gradwire::tools {

// Describes joined files as text, at most `lines` lines in each list.
std::string flight_text(const std::vector<FlightFile>& files, const FlightJoin& join, std::size_t lines);

}  // namespace gradwire::tools
