#include "gradwire/security/token/token_size.h"

#include "absl/strings/str_cat.h"

namespace gradwire::security {

absl::Status check_token_size(absl::string_view what, const Secret& token, absl::string_view file) {
  if (token.size() >= kMinTokenBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", token.size(), " bytes, expected at least ", kMinTokenBytes,
                   "; make one with: (umask 077; openssl rand -hex 32 > ", file, ")"));
}

}  // namespace gradwire::security
