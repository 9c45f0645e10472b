#pragma once

#include <array>
#include <cstddef>

#include "absl/strings/string_view.h"
#include "gradwire/security/secret.h"

namespace gradwire::security {

// HMAC-SHA256 (RFC 2104).
inline constexpr std::size_t kHmacBytes = 32;
using Hmac = std::array<char, kHmacBytes>;

// REQUIRES: the key is not empty.
Hmac hmac_sha256(const Secret& key, absl::string_view message);

inline absl::string_view view(const Hmac& hmac) { return {hmac.data(), hmac.size()}; }

}  // namespace gradwire::security
