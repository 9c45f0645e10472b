#pragma once

#include "absl/status/statusor.h"
#include "gradwire/base/threads/repeated_task.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/tls/certificates/certificate_files.h"

namespace gradwire::security {

// Returns credentials of the kind kCertificate. Connections are mutual TLS 1.3: each end shows a certificate
// that the authority signed and that names a worker of the same job ("URI:gradwire://JOB/NAME"), and both
// state the same purpose. The peer's name is in PeerIdentity; the caller checks whether it is the expected
// one.
//
// The files are checked now. When they change, new connections use the new ones, as soon as these are valid
// and name the same worker; connections that exist go on. `examine` examines the files again and again, by
// default once a second on a thread of its own, because a file system may take long to answer; tests run the
// examinations themselves. Errors: InvalidArgument, NotFound or PermissionDenied, with a sentence that names
// the file and the remedy; Unavailable if the system has no threads left.
absl::StatusOr<CredentialsPtr> make_certificate_credentials(
    const CertificateFiles& files,
    const Repeat& examine = repeat({.name = "certificates", .period = absl::Seconds(1)}));

}  // namespace gradwire::security
