#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace gradwire::tools {

// This machine's name, for people; "unknown" if the system does not say.
std::string host_name();

// Whether `host`, a name or an address, is this machine: an address of one of its interfaces, or a name that stands for
// one. Unavailable when the name is not known.
absl::StatusOr<bool> is_this_machine(const std::string& host);

// The address from which this machine would speak to `host`, and so the one at which machines on that side reach it;
// nothing is sent. "127.0.0.1" for a host that is this machine alone. Unavailable when the name is not known or there is
// no way to it.
absl::StatusOr<std::string> address_towards(const std::string& host, int port);

}  // namespace gradwire::tools
