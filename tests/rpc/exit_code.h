#pragma once

#include "absl/status/status.h"

namespace gradwire::rpc {

// What a server (server_main.h) that ends by an error of this code exits with.
inline int exit_code_of(absl::StatusCode code) { return 64 + static_cast<int>(code); }

}  // namespace gradwire::rpc
