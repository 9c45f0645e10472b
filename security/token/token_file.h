#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/security/secret.h"

namespace gradwire::security {

// A shorter token could be guessed by trying.
inline constexpr std::size_t kMinTokenBytes = 32;

// InvalidArgument, with the way to make a token in `file`, if the token is shorter. `what` names it, for
// example "the token".
absl::Status check_token_size(absl::string_view what, const Secret& token, absl::string_view file = "FILE");

// A file with the token of a job. The token is its content without one newline at the end. It is not decoded:
// 64 hexadecimal digits are a token of 64 bytes.
inline constexpr std::size_t kMaxTokenFileBytes = 4096;

// Reads a token file, which nobody but its owner may read or change (security/checked_file.h has the rule and
// the errors). InvalidArgument if the token has fewer than kMinTokenBytes bytes.
absl::StatusOr<Secret> read_token_file(const std::string& path);

// Creates a token file with mode 0600. AlreadyExists if there is a file with this name.
absl::Status create_token_file(const std::string& path, const Secret& token);

// A new token: 32 random bytes as hexadecimal digits.
Secret make_token();

}  // namespace gradwire::security
