#include "gradwire/security/tls/certificates/handshake_checks.h"

namespace gradwire::security {
namespace {

HandshakeChecks* checks_of(SSL* ssl) { return static_cast<HandshakeChecks*>(SSL_get_app_data(ssl)); }

int check_certificate(int valid, X509_STORE_CTX* path) {
  HandshakeChecks* checks =
      checks_of(static_cast<SSL*>(X509_STORE_CTX_get_ex_data(path, SSL_get_ex_data_X509_STORE_CTX_idx())));
  return checks != nullptr && checks->check_certificate(valid == 1, path) ? 1 : 0;
}

int choose_protocol(SSL* ssl, const unsigned char** chosen, unsigned char* chosen_size,
                    const unsigned char* offered, unsigned size, void* /*data*/) {
  HandshakeChecks* checks = checks_of(ssl);
  if (checks == nullptr) return SSL_TLSEXT_ERR_ALERT_FATAL;
  const absl::string_view protocol = checks->choose_protocol({reinterpret_cast<const char*>(offered), size});
  if (protocol.empty()) return SSL_TLSEXT_ERR_ALERT_FATAL;
  *chosen = reinterpret_cast<const unsigned char*>(protocol.data());
  *chosen_size = static_cast<unsigned char>(protocol.size());
  return SSL_TLSEXT_ERR_OK;
}

}  // namespace

void install_checks(SSL_CTX* context) {
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, check_certificate);
  SSL_CTX_set_alpn_select_cb(context, choose_protocol, nullptr);
}

void set_checks(SSL* ssl, HandshakeChecks* checks) { SSL_set_app_data(ssl, checks); }

}  // namespace gradwire::security
