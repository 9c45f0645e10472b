#pragma once

#include <openssl/err.h>
#include <openssl/pem.h>

#include <memory>
#include <string>

#include "gradwire/security/testing/certificates.h"
#include "gradwire/security/tls/byte_buffers.h"
#include "gradwire/security/tls/certificates/openssl.h"

namespace gradwire::security {

// For tests: a peer that uses OpenSSL directly, and therefore need not follow Gradwire's rules. It accepts
// every certificate. Not thread-safe.
class RawPeer {
 public:
  enum class Role { kClient, kServer };

  RawPeer(Role role, int socket, const TestAuthority::Pem* pem = nullptr)
      : role_(role), socket_(socket), context_(SSL_CTX_new(TLS_method())) {
    SSL_CTX_set_security_level(context(), 0);
    SSL_CTX_set_num_tickets(context(), 0);
    SSL_CTX_set_verify(context(), role == Role::kServer ? SSL_VERIFY_PEER : SSL_VERIFY_NONE,
                       [](int /*valid*/, X509_STORE_CTX* /*path*/) { return 1; });
    SSL_CTX_set_alpn_select_cb(context(), first_protocol, nullptr);
    if (pem != nullptr) {
      const CertificatePtr certificate = parse<CertificatePtr>(pem->certificate, PEM_read_bio_X509);
      const KeyPtr key = parse<KeyPtr>(pem->key, PEM_read_bio_PrivateKey);
      SSL_CTX_use_certificate(context(), certificate.get());
      SSL_CTX_use_PrivateKey(context(), key.get());
    }
  }

  SSL_CTX* context() { return context_.get(); }
  // Made at first use, so that the context can be changed before.
  SSL* ssl() {
    if (ssl_ != nullptr) return ssl_.get();
    ssl_.reset(SSL_new(context()));
    connect_bio(ssl_.get(), &ends_);
    if (role_ == Role::kServer) {
      SSL_set_accept_state(ssl_.get());
    } else {
      SSL_set_connect_state(ssl_.get());
      if (!protocol.empty()) {
        const std::string offered = static_cast<char>(protocol.size()) + protocol;
        SSL_set_alpn_protos(ssl_.get(), reinterpret_cast<const unsigned char*>(offered.data()),
                            static_cast<unsigned>(offered.size()));
      }
    }
    return ssl_.get();
  }

  // Goes on with the handshake. Returns whether it is done.
  bool step() {
    SSL* const own = ssl();
    in_.receive(socket_);
    const bool done = SSL_do_handshake(own) == 1;
    ERR_clear_error();
    out_.send(socket_);
    return done;
  }
  // Goes on with the handshake's last step, the welcome.
  bool welcome() {
    char byte = 1;
    in_.receive(socket_);
    const bool done =
        role_ == Role::kServer ? SSL_write(ssl(), &byte, 1) == 1 : SSL_read(ssl(), &byte, 1) == 1;
    ERR_clear_error();
    out_.send(socket_);
    return done;
  }
  // Sends what OpenSSL has written. Returns whether all is gone.
  bool send() { return out_.send(socket_); }
  size_t unsent() const { return out_.size(); }

  // The application protocol that a client offers; none if it is empty.
  std::string protocol = "gradwire-rpc/1";

 private:
  template <class Pointer, class Parse>
  static Pointer parse(const std::string& pem, Parse parse) {
    const BioPtr bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
    return Pointer(parse(bio.get(), nullptr, nullptr, nullptr));
  }
  static int first_protocol(SSL* /*ssl*/, const unsigned char** chosen, unsigned char* size,
                            const unsigned char* offered, unsigned /*offered_size*/, void* /*data*/) {
    *chosen = offered + 1;
    *size = offered[0];
    return SSL_TLSEXT_ERR_OK;
  }

  const Role role_;
  const int socket_;
  const SslContextPtr context_;
  ReceivedBytes in_;
  BytesToSend out_;
  BioEnds ends_{.in = &in_, .out = &out_, .max_records = 1 << 30};
  SslPtr ssl_;
};

}  // namespace gradwire::security
