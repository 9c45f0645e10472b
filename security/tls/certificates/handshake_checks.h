#pragma once

#include "absl/strings/string_view.h"
#include "gradwire/security/tls/certificates/openssl.h"

namespace gradwire::security {

// The questions of OpenSSL to the owner of a connection during its handshake.
class HandshakeChecks {
 public:
  virtual ~HandshakeChecks() = default;
  // Whether to go on after the check of one certificate of the peer's chain, whose result was `valid`. The
  // peer's own certificate is the last one. May set another error in `path`.
  virtual bool check_certificate(bool valid, X509_STORE_CTX* path) = 0;
  // Returns which of the application protocols that a client offers (each with its length before it) this
  // server speaks, as a part of `offered`; an empty text refuses the client.
  virtual absl::string_view choose_protocol(absl::string_view offered) = 0;
};

// Lets the connections of `context` ask their checks, and demand a certificate of the peer.
void install_checks(SSL_CTX* context);
// The checks of `ssl`; nullptr after its handshake.
void set_checks(SSL* ssl, HandshakeChecks* checks);

}  // namespace gradwire::security
