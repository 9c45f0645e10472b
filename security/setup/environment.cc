#include "gradwire/security/setup/environment.h"

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/error.h"
#include "gradwire/security/setup/inherited_token.h"
#include "gradwire/security/token/token_file.h"

namespace gradwire::security {
namespace {

constexpr const char* kTokenDescriptor = "GRADWIRE_TOKEN_FD";
constexpr const char* kTokenFile = "GRADWIRE_TOKEN_FILE";
constexpr const char* kCertificateFile = "GRADWIRE_CERTIFICATE_FILE";
constexpr const char* kKeyFile = "GRADWIRE_KEY_FILE";
constexpr const char* kAuthorityFile = "GRADWIRE_AUTHORITY_FILE";
constexpr const char* kJob = "GRADWIRE_JOB";
constexpr const char* kPolicyFile = "GRADWIRE_POLICY_FILE";
constexpr const char* kInsecure = "GRADWIRE_INSECURE";

std::string value_of(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

void fill(std::string& option, const char* variable) {
  if (option.empty()) option = value_of(variable);
}

bool has_token(const SecurityOptions& options) {
  return !options.token.empty() || !options.token_file.empty();
}

bool has_certificate(const SecurityOptions& options) {
  return !options.certificate_file.empty() || !options.key_file.empty() || !options.authority_file.empty();
}

void fill_certificate(SecurityOptions& options) {
  fill(options.certificate_file, kCertificateFile);
  fill(options.key_file, kKeyFile);
  fill(options.authority_file, kAuthorityFile);
}

// The token that the launcher gave to this process.
absl::StatusOr<Secret> inherited_token() {
  static InheritedToken token(kTokenDescriptor);
  return token.read();
}

// Options without any proof get one from the environment.
absl::Status fill_proof(SecurityOptions& options, const absl::StatusOr<Secret>& inherited) {
  GRADWIRE_RETURN_IF_ERROR(inherited.status());
  options.token = *inherited;
  if (options.token.empty()) fill(options.token_file, kTokenFile);
  fill_certificate(options);
  if (has_token(options) && has_certificate(options)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the environment has both a token (", options.token.empty() ? kTokenFile : kTokenDescriptor,
        ") and certificates (", kCertificateFile, ", ", kKeyFile, ", ", kAuthorityFile,
        "), expected one of them; remove the variables of the other one"));
  }
  const std::string insecure = value_of(kInsecure);
  if (insecure != "" && insecure != "0" && insecure != "1") {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed ", kInsecure, ": got \"", insecure, "\", expected 0 or 1"));
  }
  options.insecure = insecure == "1" && !has_token(options) && !has_certificate(options);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SecurityOptions> with_environment(SecurityOptions given) {
  // Read also if it is not used, so that children do not inherit it.
  const absl::StatusOr<Secret> inherited = inherited_token();
  fill(given.policy_file, kPolicyFile);
  fill(given.job, kJob);
  if (has_token(given) || given.insecure) return given;
  if (has_certificate(given)) {
    fill_certificate(given);
    return given;
  }
  GRADWIRE_RETURN_IF_ERROR(fill_proof(given, inherited));
  return given;
}

bool may_leave_host(const SecurityOptions& options) {
  return has_token(options) || has_certificate(options) || options.insecure;
}

absl::StatusOr<Secret> token_of(const SecurityOptions& options) {
  if (!options.token.empty() && !options.token_file.empty()) {
    return absl::InvalidArgumentError(
        "both SecurityOptions::token and token_file are set, expected one of them; remove the other one");
  }
  if (!options.token_file.empty()) return read_token_file(options.token_file);
  const Secret token = options.token.secret();
  if (!token.empty()) GRADWIRE_RETURN_IF_ERROR(check_token_size("the token", token));
  return token;
}

}  // namespace gradwire::security
