#pragma once

#include <memory>

#include "gradwire/transport/connection.h"

namespace gradwire::bench {

// Returns a listener that answers every message with its header. It closes the connection if a buffer does
// not have the pattern (pattern.h) whose seed is in the header.
std::shared_ptr<transport::ConnectionListener> make_mirror();

}  // namespace gradwire::bench
