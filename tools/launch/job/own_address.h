#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace gradwire::tools {

// The address from which this machine would speak to `host`, and so the one at which machines on that side
// reach it; nothing is sent. "127.0.0.1" for a host that is this machine alone. Unavailable when the name is
// not known or there is no way to it.
absl::StatusOr<std::string> address_towards(const std::string& host, int port);

}  // namespace gradwire::tools
