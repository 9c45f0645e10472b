#pragma once

#include <string>

#include "absl/status/status.h"
#include "gradwire/security/tls/certificates/certificate_set.h"
#include "gradwire/security/tls/certificates/openssl.h"

namespace gradwire::security {

// The sentence for an error of OpenSSL during a handshake or afterwards, with the remedy: Unauthenticated.
// `peer` is the address of the peer. `purpose` is that of the connection, "rpc" for example. An alert of the
// peer is explained: it refused this process's certificate, for example.
absl::Status tls_failure(const OpenSslError& error, const std::string& peer, const std::string& purpose,
                         const CertificateSet& own);

}  // namespace gradwire::security
