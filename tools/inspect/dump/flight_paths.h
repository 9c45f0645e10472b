#pragma once

#include <string>
#include <vector>

#include "gradwire/tools/inspect/dump/flight_file.h"

namespace gradwire::tools {

// Reads the flight records at these paths: files, and all records in directories. Appends a line to `errors`
// for each path that cannot be read.
std::vector<FlightFile> read_flight_paths(const std::vector<std::string>& paths, std::string& errors);

}  // namespace gradwire::tools
