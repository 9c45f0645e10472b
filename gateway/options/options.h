#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace gradwire::gateway {

// Options of a gateway. docs/gateway.md explains them. Sizes are in bytes.
struct Options {
  // Where the gateway listens: "HOST:PORT". Port 0: a free one, see Server::port(). Or "unix:PATH", a socket
  // file that only processes of this user can connect to.
  std::string address = "127.0.0.1:0";
  // TLS: files in PEM format. Both or neither.
  std::string certificate_file;
  std::string key_file;
  // With TLS: each client must have a certificate of this authority. Empty: clients need none.
  std::string client_authority_file;
  // If not empty, each RPC must have the metadata "authorization: Bearer TOKEN".
  std::string token;
  // Allows an address other than a loopback one without TLS and without a token.
  bool insecure = false;

  // Names of the functions, classes and methods that clients may call; '*' stands for any characters. Empty:
  // all that the workers registered.
  std::vector<std::string> allow;
  // Names of the operators that clients may call, for example "aten::*". Empty: none. The worker's own list
  // applies, too.
  std::vector<std::string> allow_operators;

  // Limits. A client is one connection.
  uint32_t max_calls_per_client = 256;
  uint32_t max_sessions_per_client = 16;
  uint32_t max_objects_per_session = 1024;
  // Calls and sessions of all clients.
  uint32_t max_calls = 16'384;
  uint32_t max_sessions = 16'384;
  // Bytes of the tensors of one call, of its arguments and of its result.
  uint64_t max_call_bytes = uint64_t{4} << 30;
  // Bytes of the tensors of all calls that have not ended: of one client, and of all.
  uint64_t max_bytes_per_client = uint64_t{4} << 30;
  uint64_t max_bytes = uint64_t{8} << 30;

  // Timeout of a call without a deadline; infinite: no limit.
  absl::Duration default_timeout = absl::Seconds(60);
  // A session on which nothing happens for this time ends; infinite: never.
  absl::Duration session_idle = absl::Minutes(10);
  // How long a client may leave a part of a result unread, or its next part of arguments unsent.
  absl::Duration stall_timeout = absl::Seconds(60);
  // How long shutdown() waits for calls before it cancels them.
  absl::Duration drain = absl::Seconds(5);
};

}  // namespace gradwire::gateway
