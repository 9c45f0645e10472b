#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/security_options.h"

namespace gradwire::security {

// The credentials that the options ask for, with the environment for those that are empty
// (security/setup/environment.h). InvalidArgument if they contradict each other, or name another job than
// the certificate; the errors of the files, each with the file and the remedy (security/checked_file.h).
absl::StatusOr<CredentialsPtr> make_credentials(const SecurityOptions& options);

// InvalidArgument, which names both workers, the certificate file and the remedy, if the credentials are a
// certificate of another worker than `worker`. Without this check its peers would refuse it one by one, and
// transports that know no names would not refuse it. `options` are those of the credentials, filled from the
// environment.
absl::Status check_own_name(const Credentials& credentials, const SecurityOptions& options,
                            const std::string& worker);

}  // namespace gradwire::security
