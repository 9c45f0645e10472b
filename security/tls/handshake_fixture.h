#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/security/credentials.h"

namespace gradwire::security {

// For tests: two connected non-blocking sockets.
struct SocketPair {
  SocketPair() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    client = Descriptor(ends[0]);
    server = Descriptor(ends[1]);
  }
  Descriptor client;
  Descriptor server;
};

// For tests: a client and a server whose handshakes run in turns in one thread.
struct Ends {
  Ends(const CredentialsPtr& client_credentials, const CredentialsPtr& server_credentials,
       const std::string& client_purpose = "rpc", const std::string& server_purpose = "rpc")
      : Ends(client_credentials, server_credentials, SocketPair(), client_purpose, server_purpose) {}

  Ends(const CredentialsPtr& client_credentials, const CredentialsPtr& server_credentials,
       SocketPair connected, const std::string& client_purpose = "rpc",
       const std::string& server_purpose = "rpc")
      : sockets(std::move(connected)),
        client(client_credentials->connected(sockets.client.get(), {client_purpose, "", "server:1"})),
        server(server_credentials->accepted(sockets.server.get(), {server_purpose, "", "client:2"})) {}

  // Steps both ends until each has finished or failed, or until neither goes on. A failed end closes its
  // socket, as the owner of a connection does.
  void run() {
    for (int i = 0; i < 200 && !(finished(client_result) && finished(server_result)); ++i) {
      if (!finished(client_result)) step(*client, sockets.client, &client_result);
      if (!finished(server_result)) step(*server, sockets.server, &server_result);
    }
  }

  using Result = absl::StatusOr<SocketHandshake::Progress>;
  static bool finished(const Result& result) {
    return !result.ok() || *result == SocketHandshake::Progress::kDone;
  }
  static void step(SocketHandshake& handshake, Descriptor& socket, Result* result) {
    *result = handshake.step();
    if (!result->ok()) socket.reset();
  }
  bool done() const {
    return client_result.ok() && server_result.ok() && finished(client_result) && finished(server_result);
  }
  // The errors; empty for an end that has none.
  std::string client_error() const { return std::string(client_result.status().message()); }
  std::string server_error() const { return std::string(server_result.status().message()); }

  SocketPair sockets;
  std::unique_ptr<SocketHandshake> client;
  std::unique_ptr<SocketHandshake> server;
  Result client_result = SocketHandshake::Progress::kToRead;
  Result server_result = SocketHandshake::Progress::kToRead;
};

// For tests: the streams of a finished handshake.
struct Streams {
  explicit Streams(Ends& ends) : client(ends.client->take_stream()), server(ends.server->take_stream()) {}
  std::shared_ptr<SecureStream> client;
  std::shared_ptr<SecureStream> server;
};

// For tests: waits until the socket has the event. Returns false after a minute.
inline bool wait_for(int socket, short event) {
  pollfd waited{.fd = socket, .events = event, .revents = 0};
  return ::poll(&waited, 1, 60'000) == 1;
}

}  // namespace gradwire::security
