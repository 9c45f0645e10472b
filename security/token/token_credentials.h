#pragma once

#include "absl/status/statusor.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/token/token_file.h"

namespace gradwire::security {

// Credentials of a job whose processes know the same token. Each connection begins with the token handshake
// (token_handshake.h). Its bytes then travel as they are: authenticated peers, no encryption.
//
// `check_addresses`: see SecurityOptions. InvalidArgument for a token of fewer than kMinTokenBytes bytes. The
// token itself is not kept, only the key that is made from it.
absl::StatusOr<CredentialsPtr> make_token_credentials(const Secret& token, bool check_addresses);

}  // namespace gradwire::security
