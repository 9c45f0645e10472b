#include "gradwire/security/token/token_file.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"
#include "gradwire/security/checked_file.h"
#include "gradwire/security/private_file.h"
#include "gradwire/security/token/random_bytes.h"

namespace gradwire::security {

absl::Status check_token_size(absl::string_view what, const Secret& token, absl::string_view file) {
  if (token.size() >= kMinTokenBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", token.size(), " bytes, expected at least ", kMinTokenBytes,
                   "; make one with: (umask 077; openssl rand -hex 32 > ", file, ")"));
}

namespace {

constexpr FileKind kTokenFile = {.what = "token file",
                                 .option = "SecurityOptions::token_file (GRADWIRE_TOKEN_FILE)",
                                 .rule = FileKind::Rule::kSecret,
                                 .most = kMaxTokenFileBytes};
constexpr std::size_t kRandomBytes = 32;

}  // namespace

absl::StatusOr<Secret> read_token_file(const std::string& path) {
  GRADWIRE_ASSIGN_OR_RETURN(const CheckedFile file, read_checked_file(kTokenFile, path));
  Secret token{absl::StripSuffix(file.content.reveal(), "\n")};
  GRADWIRE_RETURN_IF_ERROR(check_token_size(absl::StrCat("the token in ", path), token, path));
  return token;
}

absl::Status create_token_file(const std::string& path, const Secret& token) {
  std::string line = absl::StrCat(token.reveal(), "\n");
  return create_private_file(kTokenFile.what, path, Secret::take(line));
}

Secret make_token() {
  std::string bytes = random_bytes(kRandomBytes);
  std::string digits = absl::BytesToHexString(bytes);
  wipe(bytes);
  return Secret::take(digits);
}

}  // namespace gradwire::security
