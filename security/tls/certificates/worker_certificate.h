#pragma once

#include <openssl/x509.h>

#include <string>

#include "absl/status/statusor.h"
#include "gradwire/security/peer_identity.h"

namespace gradwire::security {

// Returns the worker that a certificate names: the job and the name in its only subject alternative name of
// the form "URI:gradwire://JOB/NAME". Errors: InvalidArgument, with a phrase that follows "the certificate".
absl::StatusOr<PeerIdentity> worker_of(X509* certificate);

// The inverse: "gradwire://JOB/NAME".
std::string worker_uri(const PeerIdentity& worker);

// Describes a certificate for a message: the worker that it names, or else its escaped subject.
std::string describe(X509* certificate);

// The escaped name of the subject or of the issuer, for messages.
std::string describe(const X509_NAME* name);

// Explains in a phrase that follows `certificate`'s description why OpenSSL's verification refused it with
// `error` (X509_V_ERR_...), and what the user can do: "has expired: ...". `authority` describes the
// authority's file.
std::string why_refused(int error, X509* certificate, const std::string& authority);

// A point in time of a certificate, as "2026-01-31T12:00:00Z".
std::string describe(const ASN1_TIME* time);

}  // namespace gradwire::security
