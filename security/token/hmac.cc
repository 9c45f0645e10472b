#include "gradwire/security/token/hmac.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <exception>

namespace gradwire::security {

Hmac hmac_sha256(const Secret& key, absl::string_view message) {
  Hmac hmac;
  unsigned int size = 0;
  const unsigned char* const done =
      ::HMAC(EVP_sha256(), key.reveal().data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(message.data()), message.size(),
             reinterpret_cast<unsigned char*>(hmac.data()), &size);
  // Only an OpenSSL without SHA-256, or no memory, can be the cause. A proof made of other bytes would be
  // worse than the end of the process.
  if (done == nullptr || size != kHmacBytes) std::terminate();
  return hmac;
}

}  // namespace gradwire::security
