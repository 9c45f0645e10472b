#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gradwire/security/message_handshake.h"
#include "gradwire/security/peer_identity.h"
#include "gradwire/security/secure_stream.h"

namespace gradwire::security {

// The remedy in errors about a process that has no credentials and would reach, or be reached from, other
// hosts.
inline constexpr char kHowToSecure[] =
    "start the job with the launcher, give all its processes one token (SecurityOptions::token_file, "
    "GRADWIRE_TOKEN_FILE) or certificates, or set SecurityOptions::insecure (GRADWIRE_INSECURE=1) if every "
    "process in the network is trusted";

// The facts that one end knows about a connection before its handshake.
struct ConnectionFacts {
  // The use of the connection: "rpc", "store", "group". Both ends must say the same, so that nobody can lead
  // a connection to a port of another kind.
  std::string purpose;
  // The name of this process, for the peer and for messages; at most 255 bytes. May be empty.
  std::string own_name;
  // The address of the peer, for messages.
  std::string peer_address;
};

// The proof of a process for its peers, and the proof that it demands of them. Immutable and thread-safe; the
// files behind it may change.
class Credentials {
 public:
  enum class Kind : uint8_t {
    // Nothing, and therefore no connection leaves this host.
    kNone,
    // Nothing, but the user has said that the network is trusted.
    kInsecure,
    kToken,
    kCertificate,
  };

  virtual ~Credentials() = default;
  virtual Kind kind() const = 0;
  // The handshake of the end that has connected, or accepted, the connected non-blocking `socket`, which must
  // outlive it. Both ends have credentials of the same kind. nullptr for kNone and kInsecure.
  virtual std::unique_ptr<SocketHandshake> connected(int socket, const ConnectionFacts& facts) const = 0;
  virtual std::unique_ptr<SocketHandshake> accepted(int socket, const ConnectionFacts& facts) const = 0;
  // The handshake of a connection that has no socket (UCX). nullptr for all kinds but kToken.
  virtual std::unique_ptr<MessageHandshake> for_messages(const MessageChannel&,
                                                         const ConnectionFacts&) const {
    return nullptr;
  }

  // The worker that these credentials name. Only certificates name one; else it is empty.
  virtual PeerIdentity own_identity() const { return {}; }

  // Whether connections to and from other hosts are allowed.
  bool may_leave_host() const { return kind() != Kind::kNone; }
};

using CredentialsPtr = std::shared_ptr<const Credentials>;

// The kinds that have no handshake.
CredentialsPtr no_credentials();
CredentialsPtr insecure_credentials();

}  // namespace gradwire::security
