#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/secret.h"

namespace gradwire::security {

// A shorter token could be guessed by trying.
inline constexpr std::size_t kMinTokenBytes = 32;

// Credentials of a job whose processes know the same token. Each connection begins with the token handshake
// (token_handshake.h). Its bytes then travel as they are: authenticated peers, no encryption.
//
// `check_addresses`: see SecurityOptions. InvalidArgument for a token of fewer than kMinTokenBytes bytes. The
// token itself is not kept, only the key that is made from it.
absl::StatusOr<CredentialsPtr> make_token_credentials(const Secret& token, bool check_addresses);

}  // namespace gradwire::security
