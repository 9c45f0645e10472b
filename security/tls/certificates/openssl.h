#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

namespace gradwire::security {

// Owners of OpenSSL's objects.
template <auto kFree>
struct OpenSslFree {
  template <class T>
  void operator()(T* object) const {
    kFree(object);
  }
};

using SslPtr = std::unique_ptr<SSL, OpenSslFree<SSL_free>>;
using SslContextPtr = std::unique_ptr<SSL_CTX, OpenSslFree<SSL_CTX_free>>;
using CertificatePtr = std::unique_ptr<X509, OpenSslFree<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, OpenSslFree<EVP_PKEY_free>>;
using AuthoritiesPtr = std::unique_ptr<X509_STORE, OpenSslFree<X509_STORE_free>>;
using BioPtr = std::unique_ptr<BIO, OpenSslFree<BIO_free>>;

// The oldest error in this thread's queue of OpenSSL's errors.
struct OpenSslError {
  int library = 0;
  int reason = 0;
  std::string text;

  // The number of the TLS alert that the peer sent, or -1 if the error has another cause.
  int alert() const;
};

// Returns the oldest error of the calling thread, and empties its queue, so that the errors of one connection
// never appear in the calls of another one.
OpenSslError take_openssl_error();

}  // namespace gradwire::security
