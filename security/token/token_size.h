#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/security/secret.h"

namespace gradwire::security {

// A shorter token could be guessed by trying.
inline constexpr std::size_t kMinTokenBytes = 32;

// InvalidArgument, with the way to make a token in `file`, if the token is shorter. `what` names it, for
// example "the token".
absl::Status check_token_size(absl::string_view what, const Secret& token, absl::string_view file = "FILE");

}  // namespace gradwire::security
