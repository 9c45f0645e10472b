#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/security/security_options.h"
#include "gradwire/store/interface/limits.h"

namespace gradwire::security {
class Credentials;
}

namespace gradwire::store {

class StoreLoop;

// Options of a TcpStoreServer.
struct TcpStoreServerOptions {
  // Decides which interfaces the server listens on. For a loopback name or address: the loopback interface,
  // so that only processes of this machine can connect. Otherwise, also if empty: every interface.
  std::string host;
  // Port to listen on; if 0, the system chooses one.
  int port = 0;
  // Limit for the answers that one client has asked for but not read. Beyond it the server refuses further
  // calls, and closes the connection if the client goes on calling.
  std::size_t max_unread_bytes = kMaxUnreadBytes;
  // As TcpStoreOptions::allow_unauthenticated_pytorch.
  std::optional<bool> allow_unauthenticated_pytorch = std::nullopt;
  // The proof that clients must give. Without a token or a certificate the server listens on the loopback
  // interface only, unless `security.insecure` is set.
  SecurityOptions security = {};
  // The credentials that were made of `security`; nullptr: the server makes them.
  std::shared_ptr<const security::Credentials> credentials = nullptr;
};

// Server that holds a TcpStore's table (proto/store.proto). A TcpStore with is_master contains one. A
// launcher hosts one by itself, so that the table survives every worker. Waiting calls hold no thread in the
// server.
//
// States: serving, then stopped. Thread-safe.
class TcpStoreServer {
 public:
  // Starts a server. InvalidArgument: invalid port or host. FailedPrecondition, which names the port: it is
  // in use or may not be used. ResourceExhausted: the system has no thread or descriptor left.
  static absl::StatusOr<std::unique_ptr<TcpStoreServer>> start(const TcpStoreServerOptions& options);
  // Calls shutdown(). In a forked child the server stays with its parent, and both do nothing.
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  // The port that the server listens on; the port that the system chose if 0 was given.
  int port() const;
  // Number of calls that are waiting now.
  std::size_t num_waiters() const;
  // Ends waiting calls with Unavailable and waits up to `grace` until their answers are sent. Repeated calls
  // do nothing.
  void shutdown(absl::Duration grace = absl::Seconds(1));

  // The loop that the server runs on. A client in the same process may share it.
  const std::shared_ptr<StoreLoop>& loop() const;

 private:
  struct Impl;
  explicit TcpStoreServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace gradwire::store
