#pragma once

#include "absl/status/statusor.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/security_options.h"

namespace gradwire::security {

// The credentials that the options ask for, with the environment for those that are empty
// (security/environment.h). InvalidArgument if they contradict each other; FailedPrecondition, which names
// the file and the remedy, if a token or a certificate cannot be used.
absl::StatusOr<CredentialsPtr> make_credentials(const SecurityOptions& options);

}  // namespace gradwire::security
