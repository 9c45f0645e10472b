#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace gradwire::tools {

// Returns the local address of the route to `host`, at which machines on that side can reach this one. Sends
// nothing. Returns "127.0.0.1" if `host` is a loopback name or address. Unavailable if the name cannot be
// resolved or no route exists.
absl::StatusOr<std::string> address_towards(const std::string& host, int port);

}  // namespace gradwire::tools
