#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "transport/descriptor.h"

namespace gradwire::transport {

struct ListeningSocket {
  Descriptor descriptor;
  int port = 0;
};

// A socket that listens. Unavailable with the address and the cause, such as a port that is in use.
absl::StatusOr<ListeningSocket> listening_socket(const std::string& host, int port);

}  // namespace gradwire::transport
