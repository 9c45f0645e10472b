#include "gradwire/security/secret.h"

#include <openssl/crypto.h>

#include <cstring>

namespace gradwire::security {

class Secret::Bytes {
 public:
  explicit Bytes(absl::string_view text) : size_(text.size()), bytes_(new char[text.size()]) {
    std::memcpy(bytes_.get(), text.data(), size_);
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() { OPENSSL_cleanse(bytes_.get(), size_); }

  absl::string_view view() const { return {bytes_.get(), size_}; }

 private:
  const std::size_t size_;
  const std::unique_ptr<char[]> bytes_;
};

Secret::Secret(absl::string_view text) {
  if (!text.empty()) bytes_ = std::make_shared<const Bytes>(text);
}

Secret Secret::take(std::string& text) {
  Secret secret{absl::string_view(text)};
  wipe(text);
  return secret;
}

absl::string_view Secret::reveal() const { return bytes_ == nullptr ? absl::string_view() : bytes_->view(); }

bool operator==(const Secret& a, const Secret& b) { return equal_in_constant_time(a.reveal(), b.reveal()); }

void wipe(std::string& text) {
  // resize() within the capacity does not move the text. Earlier, longer contents may lie behind its end.
  text.resize(text.capacity());
  OPENSSL_cleanse(text.data(), text.size());
  text.clear();
}

bool equal_in_constant_time(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && (a.empty() || CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace gradwire::security
