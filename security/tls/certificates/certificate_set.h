#pragma once

#include <array>
#include <memory>

#include "absl/status/statusor.h"
#include "gradwire/security/checked_file.h"
#include "gradwire/security/peer_identity.h"
#include "gradwire/security/tls/certificates/certificate_files.h"
#include "gradwire/security/tls/certificates/openssl.h"

namespace gradwire::security {

// One content of the three files, checked, and OpenSSL's context made of it. Immutable, thread-safe.
struct CertificateSet {
  CertificateFiles files;
  // The stamps of the certificate, the key and the authority.
  std::array<FileStamp, 3> stamps;
  CertificatePtr certificate;
  // The worker that the certificate names.
  PeerIdentity worker;
  // Allows TLS 1.3 only, without session tickets and early data, and demands a certificate of the peer.
  // Its connections have checks (handshake_checks.h).
  SslContextPtr context;
};

// The stamps that the three files have now.
std::array<FileStamp, 3> stamps_of(const CertificateFiles& files);

// Reads and checks the files: the key is secret and fits the certificate, which is valid now, names a worker,
// and is signed by the authority for both roles of a connection. Errors: those of read_checked_file();
// InvalidArgument, with a sentence that names the file and the remedy.
absl::StatusOr<std::shared_ptr<const CertificateSet>> load_certificates(const CertificateFiles& files);

}  // namespace gradwire::security
