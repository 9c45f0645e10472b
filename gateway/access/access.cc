#include "gradwire/gateway/access/access.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/security/policy/policy.h"

namespace gradwire::gateway {
namespace {

bool any_matches(const std::vector<std::string>& patterns, absl::string_view name) {
  for (const std::string& pattern : patterns) {
    if (security::matches(pattern, name)) return true;
  }
  return false;
}

// Only names of the loopback interface, no other name: it may resolve to any address.
bool is_loopback(absl::string_view address) {
  if (absl::StartsWith(address, "unix:")) return true;
  const std::size_t colon = address.rfind(':');
  absl::string_view host = colon == absl::string_view::npos ? address : address.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  if (host == "localhost" || host == "::1") return true;
  // Four decimal numbers, the first of them 127. A name such as "127.example.org" is not one.
  return absl::StartsWith(host, "127.") && host.find_first_not_of("0123456789.") == absl::string_view::npos;
}

}  // namespace

bool equal_in_constant_time(absl::string_view secret, absl::string_view given) {
  // `difference` is volatile, so that the compiler does not end the loop early.
  volatile unsigned char difference = secret.size() == given.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char expected = secret.empty() ? '\0' : secret[i % secret.size()];
    difference = static_cast<unsigned char>(difference | (expected ^ given[i]));
  }
  return difference == 0;
}

Access::Access(const Options& options)
    : token_(options.token), callees_(options.allow), operators_(options.allow_operators) {}

absl::Status Access::check_token(absl::string_view authorization) const {
  if (token_.empty()) return absl::OkStatus();
  if (!absl::ConsumePrefix(&authorization, "Bearer ") || !equal_in_constant_time(token_, authorization)) {
    return absl::UnauthenticatedError(
        "the metadata \"authorization\" must be \"Bearer TOKEN\" with the token of the gateway");
  }
  return absl::OkStatus();
}

absl::Status Access::check_callee(absl::string_view name) const {
  if (callees_.empty() || any_matches(callees_, name)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("\"", name.substr(0, 256), "\" is not on the allow list (option allow of the gateway)"));
}

absl::Status Access::check_operator(absl::string_view name) const {
  // The pattern is for the name without its overload.
  if (any_matches(operators_, name.substr(0, name.find('.')))) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "operator \"", name.substr(0, 256), "\" is not allowed (option allow_operators of the gateway)"));
}

absl::Status check_options(const Options& options) {
  const bool tls = !options.certificate_file.empty();
  if (tls != !options.key_file.empty()) {
    return absl::InvalidArgumentError(
        "TLS needs both a certificate file and a key file: got only one of them");
  }
  if (!tls && !options.client_authority_file.empty()) {
    return absl::InvalidArgumentError(
        "certificates of clients need TLS: got a client authority without a certificate file and a key file");
  }
  if (!tls && options.token.empty() && !options.insecure && !is_loopback(options.address)) {
    return absl::FailedPreconditionError(
        absl::StrCat("refusing to listen on ", options.address,
                     ": every host that reaches it could call all functions of the job; use TLS or a token, "
                     "listen on 127.0.0.1, or set "
                     "insecure"));
  }
  return absl::OkStatus();
}

}  // namespace gradwire::gateway
