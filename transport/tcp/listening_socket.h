#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::transport {

struct ListeningSocket {
  Descriptor descriptor;
  int port = 0;
};

// A socket that listens on `host` and `port`, 0 for any free one. Of several callers that want the same port
// at the same time, in one process or in several, exactly one gets it. Waits up to 50 ms for that at each
// address of the host. Unavailable: names the address and the cause, such as a port that is in use.
absl::StatusOr<ListeningSocket> listening_socket(const std::string& host, int port);

namespace internal {

// The same with another listen(2): takes a bound descriptor; returns 0, or -1 and sets errno.
using ListenCall = absl::FunctionRef<int(int descriptor)>;
absl::StatusOr<ListeningSocket> listening_socket(const std::string& host, int port, ListenCall listen_call);

}  // namespace internal
}  // namespace gradwire::transport
