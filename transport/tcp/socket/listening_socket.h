#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::transport {

struct ListeningSocket {
  Descriptor descriptor;
  int port = 0;
};

// Returns a socket that listens on `host` and `port`; port 0: any free port. If several callers want the same
// port at the same time, in one or several processes, exactly one of them gets it; this may take up to 50 ms
// for each address of the host. Unavailable, with the address and the cause, for example if the port is in
// use.
absl::StatusOr<ListeningSocket> listening_socket(const std::string& host, int port);

struct ListeningSockets {
  std::vector<Descriptor> descriptors;
  int port = 0;
};

// Returns sockets that listen on the addresses of the loopback interface, 127.0.0.1 and ::1, at the same
// port. A family of addresses that this host does not have is left out. Otherwise as above.
absl::StatusOr<ListeningSockets> loopback_listening_sockets(int port);

namespace internal {

// As above, with another implementation of listen(2): it takes a bound descriptor and returns 0, or returns
// -1 and sets errno.
using ListenCall = absl::FunctionRef<int(int descriptor)>;
absl::StatusOr<ListeningSocket> listening_socket(const std::string& host, int port, ListenCall listen_call);

}  // namespace internal
}  // namespace gradwire::transport
