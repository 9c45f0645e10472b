#include "gradwire/security/tls/certificates/openssl.h"

#include <openssl/err.h>

#include "absl/strings/str_cat.h"

namespace gradwire::security {

int OpenSslError::alert() const {
  return library == ERR_LIB_SSL && reason >= SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256
             ? reason - SSL_AD_REASON_OFFSET
             : -1;
}

OpenSslError take_openssl_error() {
  OpenSslError error;
  const unsigned long code = ERR_get_error();
  if (code != 0) {
    error.library = ERR_GET_LIB(code);
    error.reason = ERR_GET_REASON(code);
    const char* reason = ERR_reason_error_string(code);
    error.text = reason != nullptr ? std::string(reason) : absl::StrCat("error ", code);
  }
  ERR_clear_error();
  return error;
}

}  // namespace gradwire::security
