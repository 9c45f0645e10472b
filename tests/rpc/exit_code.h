#pragma once

#include "absl/status/status.h"

namespace gradwire::rpc {

// Returns the exit code of a server (server_main.h) that ends with an error of this code.
inline int exit_code_of(absl::StatusCode code) { return 64 + static_cast<int>(code); }

}  // namespace gradwire::rpc
