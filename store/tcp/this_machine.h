#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace gradwire::store {

// Whether `host`, a name or an address, is this machine: an address of one of its interfaces or of all of them
// (0.0.0.0), or a name that stands for one. Unavailable when the name is not known.
absl::StatusOr<bool> is_this_machine(const std::string& host);

}  // namespace gradwire::store
