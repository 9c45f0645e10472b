#pragma once

#include "gradwire/tools/inspect/input/options.h"

namespace gradwire::inspect {

// The command `inspect serve`: prints the address of the page, and serves it until SIGINT, SIGTERM or SIGHUP.
// Returns the exit status: 0; 1 if the page cannot be served; 2 if the address is malformed. Must be called
// before other threads are started, because they inherit the signals that are blocked.
int serve_command(const Options& options);

}  // namespace gradwire::inspect
