#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/security/security_options.h"

namespace gradwire::tests {

// A script for workers: it writes its token to the test's pipe, and then waits until the test ends it.
inline constexpr char kShowTokenAndWait[] =
    "echo $MASTER_PORT $(cat /proc/self/fd/$GRADWIRE_TOKEN_FD) >&9; exec sleep 1000";

// Returns the command lines and environments of all processes of this host, as far as the test may read them,
// that contain `text`, each as "/proc/PID/environ".
std::vector<std::string> processes_that_show(const std::string& text);

// Opens the store at 127.0.0.1:`port` and closes it again.
absl::Status try_store(int port, const SecurityOptions& security);

// Writes a token file that only this user can read, and returns its path.
std::string token_file(const std::string& name, const std::string& token);

}  // namespace gradwire::tests
