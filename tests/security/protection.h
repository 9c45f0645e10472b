#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/security/security_options.h"
#include "gradwire/security/testing/certificates.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire {

// For tests: the ways to protect a job, with members and an honest store.

inline SecurityOptions options_of(const security::CertificateFiles& files) {
  SecurityOptions security;
  security.certificate_file = files.certificate;
  security.key_file = files.key;
  security.authority_file = files.authority;
  return security;
}

inline const security::TestAuthority& job_authority() {
  static const security::TestAuthority authority;
  return authority;
}

enum class Protection { kToken, kCertificates };

inline std::string name_of(Protection protection) {
  return protection == Protection::kToken ? "Token" : "Certificates";
}

// A member of the job. With a token and `relayed` it does not check addresses, so that only the rest of the
// handshake protects it from a relay.
inline SecurityOptions member(Protection protection, bool relayed = false) {
  if (protection == Protection::kCertificates) return options_of(job_authority().worker("job", "member"));
  SecurityOptions security;
  security.token = "the token of this job, 32 bytes at least";
  security.check_addresses = !relayed;
  return security;
}

inline absl::StatusOr<std::shared_ptr<store::TcpStore>> open_store(
    int port, const SecurityOptions& security, absl::Duration timeout = absl::Seconds(20)) {
  return store::TcpStore::open("127.0.0.1", port, {.timeout = timeout, .security = security});
}

}  // namespace gradwire
