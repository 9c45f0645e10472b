#include "gradwire/security/security_options.h"

#include "absl/strings/string_view.h"
#include "gradwire/security/secret.h"

namespace gradwire {

SecretOption::SecretOption(const char* text) : SecretOption(security::Secret(absl::string_view(text))) {}

SecretOption::SecretOption(const std::string& text)
    : SecretOption(security::Secret(absl::string_view(text))) {}

SecretOption::SecretOption(std::string&& text) : SecretOption(security::Secret::take(text)) {}

SecretOption::SecretOption(const security::Secret& secret) {
  if (!secret.empty()) secret_ = std::make_shared<const security::Secret>(secret);
}

security::Secret SecretOption::secret() const { return secret_ == nullptr ? security::Secret() : *secret_; }

bool operator==(const SecretOption& a, const SecretOption& b) { return a.secret() == b.secret(); }

}  // namespace gradwire
