#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/security/secret.h"

namespace gradwire::security {

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
