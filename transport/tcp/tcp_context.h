#pragma once

#include <memory>
#include <string>
#include <utility>

#include "gradwire/base/containers/hash_map.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/local_peer/user_guard.h"
#include "gradwire/security/warning_limit.h"
#include "gradwire/transport/common/loop_context.h"
#include "gradwire/transport/tcp/admission/admission.h"
#include "gradwire/transport/tcp/secure/rules.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gradwire/transport/tcp/socket/name_lookups.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gradwire/transport/tcp/wire/preface.h"

namespace gradwire::transport {

class Arrival;
class TcpConnection;

// The state that a tcp transport shares with its connections.
struct TcpContext : LoopContext {
  TcpContext(TcpOptions given, std::shared_ptr<EventLoop> given_loop)
      : LoopContext(given.pool, std::move(given_loop)),
        options(allowed(std::move(given))),
        proof(proof_of(options.credentials->kind())),
        lookups(options.look_up),
        admission({.arrivals = options.limits.max_arrivals,
                   .arrivals_per_host = options.limits.max_arrivals_per_address,
                   .connections_per_host = options.limits.max_connections_per_address}),
        users(options.allowed_users) {
    introduction_timeout = options.introduction_timeout;
  }

  void shut_down_in_loop() override;

  // Whether a connection to this address is allowed: without credentials nothing leaves this host.
  bool allows(const SocketAddress& address) const {
    return options.credentials->may_leave_host() || is_loopback(address);
  }

  // Without credentials: whether the process at the other end belongs to this process's user, or to an
  // allowed one. The first is for an accepted socket, the second for a socket that has connected.
  absl::Status check_client_in_loop(int socket);
  absl::Status check_server_in_loop(int socket);

  // The handshake of a stripe at the accepting end; nullptr: the connection gave no proof.
  std::unique_ptr<security::SocketHandshake> stripe_handshake_of_acceptor(
      int socket, const std::string& peer_address) const;

  security::ConnectionFacts facts(std::string peer_address) const {
    return {
        .purpose = options.purpose, .own_name = options.own_name, .peer_address = std::move(peer_address)};
  }

  // `credentials` is set.
  const TcpOptions options;
  // The proof that both ends of a connection give.
  const Preface::Proof proof;
  // The lookups of host names. Thread-safe.
  NameLookups lookups;

  // The members below are used only by the loop's driver.

  // The accepted connections by token. A socket with the token of a connection is a stripe of it.
  HashMap<Preface::Token, TcpConnection*> by_token;
  Admission admission;
  HashMap<Admission::Id, std::shared_ptr<Arrival>> arrivals;
  security::WarningLimit warnings;
  security::UserGuard users;

 private:
  // The options without what the credentials do not allow.
  static TcpOptions allowed(TcpOptions options);
};

// The same at the end that opens the stripes.
std::unique_ptr<security::SocketHandshake> stripe_handshake_of_opener(const TcpOptions& options, int socket,
                                                                      const std::string& peer_address);

// Sets the options of all sockets: no delay, keepalive, a timeout for unacknowledged bytes.
void set_connection_options(int socket, const TcpOptions& options);

}  // namespace gradwire::transport
