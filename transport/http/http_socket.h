#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::transport {

// A socket that listens for an HTTP server.
struct HttpSocket {
  Descriptor socket;
  // As HttpServer::address().
  std::string address;
  // The file of the socket, which its owner must remove; empty for TCP.
  std::string file;
  // Whether only processes of this host reach it.
  bool local = true;
};

// Opens the socket of HttpOptions::address. `insecure`, `consent` and the errors: as there.
absl::StatusOr<HttpSocket> open_http_socket(const std::string& address, bool insecure,
                                            const std::string& consent);

}  // namespace gradwire::transport
