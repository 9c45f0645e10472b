#pragma once

#include <memory>
#include <string>

#include "gradwire/security/tls/certificates/certificate_set.h"
#include "gradwire/security/tls/certificates/openssl.h"

namespace gradwire::security {

// One end of a TLS connection, which its handshake hands over to its stream.
struct TlsParts {
  // Owned by the owner of the connection.
  int socket = -1;
  // The address and the purpose, for messages.
  std::string peer_address;
  std::string purpose;
  // The certificates of the connection's beginning.
  std::shared_ptr<const CertificateSet> own;
  SslPtr ssl;
};

}  // namespace gradwire::security
