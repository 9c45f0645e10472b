#include "gradwire/security/token/token_file.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"
#include "gradwire/security/private_file.h"
#include "gradwire/security/token/random_bytes.h"
#include "gradwire/security/token/token_size.h"

namespace gradwire::security {
namespace {

constexpr absl::string_view kWhat = "token file";
constexpr std::size_t kRandomBytes = 32;

}  // namespace

absl::StatusOr<Secret> read_token_file(const std::string& path) {
  GRADWIRE_ASSIGN_OR_RETURN(const Secret content, read_private_file(kWhat, path, kMaxTokenFileBytes));
  Secret token{absl::StripSuffix(content.reveal(), "\n")};
  GRADWIRE_RETURN_IF_ERROR(check_token_size(absl::StrCat("the token in \"", path, "\""), token));
  return token;
}

absl::Status create_token_file(const std::string& path, const Secret& token) {
  std::string line = absl::StrCat(token.reveal(), "\n");
  return create_private_file(kWhat, path, Secret::take(line));
}

Secret make_token() {
  std::string bytes = random_bytes(kRandomBytes);
  std::string digits = absl::BytesToHexString(bytes);
  wipe(bytes);
  return Secret::take(digits);
}

}  // namespace gradwire::security
