#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/tls/certificates/openssl.h"

namespace gradwire::security {

// An authority for the certificates of one job. Its key is in the memory of this process only, so nobody can
// sign another certificate of the job once the authority has been destroyed. Immutable, thread-safe.
class JobAuthority {
 public:
  // A certificate with its key, both in PEM.
  struct Identity {
    std::string certificate;
    Secret key;
  };

  // Makes an authority whose certificates are valid from a few minutes ago, because the clocks of hosts
  // differ, for `validity`. InvalidArgument: `job` is not a name as in base/name.h. Unavailable: OpenSSL
  // fails.
  static absl::StatusOr<JobAuthority> create(const std::string& job, absl::Duration validity);

  const std::string& job() const { return job_; }
  // The certificate of the authority, in PEM.
  const std::string& certificate() const { return pem_; }

  // Makes a key and the certificate of the worker `name`, for both ends of connections. The worker is in the
  // only subject alternative name, "URI:gradwire://JOB/NAME". Errors: as create().
  absl::StatusOr<Identity> issue(const std::string& name) const;

 private:
  JobAuthority() = default;

  std::string job_;
  absl::Time from_;
  absl::Time until_;
  KeyPtr key_;
  CertificatePtr own_;
  std::string pem_;
};

}  // namespace gradwire::security
