#pragma once

#include <string>

namespace gradwire {

// A number of bytes for people: "512 B", "3.4 MiB". Not negative.
std::string bytes_text(double bytes);

}  // namespace gradwire
