#include "gradwire/security/tls/certificates/certificate_set.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/security/tls/certificates/handshake_checks.h"
#include "gradwire/security/tls/certificates/worker_certificate.h"

namespace gradwire::security {
namespace {

// Intermediate authorities between a worker's certificate and the authority.
constexpr int kMaxDepth = 4;
constexpr size_t kMaxCertificates = 64;
constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr FileKind kCertificateFile = {
    .what = "certificate file",
    .option = "SecurityOptions::certificate_file (GRADWIRE_CERTIFICATE_FILE)",
    .rule = FileKind::Rule::kTrusted,
    .most = kMaxFileBytes};
constexpr FileKind kKeyFile = {.what = "key file",
                               .option = "SecurityOptions::key_file (GRADWIRE_KEY_FILE)",
                               .rule = FileKind::Rule::kSecret,
                               .most = kMaxFileBytes};
// The authority decides whom this process trusts.
constexpr FileKind kAuthorityFile = {.what = "authority file",
                                     .option = "SecurityOptions::authority_file (GRADWIRE_AUTHORITY_FILE)",
                                     .rule = FileKind::Rule::kTrusted,
                                     .most = kMaxFileBytes};
// No RSA key below 2048 bits, no SHA-1.
constexpr int kSecurityLevel = 2;
// The maximum size of the certificates that a peer sends, in bytes.
constexpr long kMaxPeerBytes = 64L << 10;
// AES with 128 bits first: it is a third faster than with 256 bits.
constexpr const char* kCiphers = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
constexpr const char* kGroups = "X25519:P-256:P-384";

using CertificateList = std::vector<CertificatePtr>;
using StorePathPtr = std::unique_ptr<X509_STORE_CTX, OpenSslFree<X509_STORE_CTX_free>>;

struct StackFree {
  void operator()(STACK_OF(X509) * stack) const { sk_X509_free(stack); }
};

int no_passphrase(char* /*text*/, int /*size*/, int /*writing*/, void* /*data*/) { return -1; }

BioPtr memory(absl::string_view bytes) {
  // OpenSSL refuses nullptr, which an empty text may have.
  return BioPtr(BIO_new_mem_buf(bytes.empty() ? "" : bytes.data(), static_cast<int>(bytes.size())));
}

absl::Status bad(const std::string& what, const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("the ", what, " file ", path, " ", why));
}

absl::StatusOr<CertificateList> parse_certificates(const std::string& what, const std::string& path,
                                                   absl::string_view bytes) {
  ERR_clear_error();
  const BioPtr bio = memory(bytes);
  CertificateList found;
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, no_passphrase, nullptr)) {
    found.emplace_back(certificate);
    if (found.size() > kMaxCertificates) {
      return bad(
          what, path,
          absl::StrCat("has more than ", kMaxCertificates, " certificates; keep those of this job only"));
    }
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const OpenSslError error = take_openssl_error();
  if (!at_end) {
    return bad(
        what, path,
        absl::StrCat("has a malformed certificate (", error.text, "): expected PEM; write the file again"));
  }
  if (found.empty()) {
    return bad(what, path,
               "has no certificate: expected PEM with \"-----BEGIN CERTIFICATE-----\"; write the file again");
  }
  return found;
}

absl::StatusOr<KeyPtr> parse_key(const std::string& path, absl::string_view bytes) {
  ERR_clear_error();
  const BioPtr bio = memory(bytes);
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr));
  const OpenSslError error = take_openssl_error();
  if (key != nullptr) return key;
  if (absl::StrContains(bytes, "ENCRYPTED")) {
    return bad(
        "key", path,
        absl::StrCat("is encrypted with a passphrase; make one without it: (umask 077; openssl pkey -in ",
                     path, " -out ", path, ".plain)"));
  }
  return bad("key", path,
             absl::StrCat("has no private key that can be read (", error.text,
                          "): expected PEM with \"-----BEGIN PRIVATE KEY-----\"; write the file again"));
}

absl::StatusOr<AuthoritiesPtr> make_authorities(const std::string& path,
                                                const CertificateList& certificates) {
  AuthoritiesPtr authorities(X509_STORE_new());
  for (const CertificatePtr& each : certificates) {
    if (X509_check_ca(each.get()) == 0) {
      return bad("authority", path,
                 absl::StrCat("has a certificate that may not sign others (", describe(each.get()),
                              "): expected basicConstraints CA:TRUE; give the certificate of the authority"));
    }
    if (X509_STORE_add_cert(authorities.get(), each.get()) != 1) {
      return bad("authority", path, absl::StrCat("cannot be used: ", take_openssl_error().text));
    }
  }
  // An intermediate authority suffices: the user trusts what is in the file.
  X509_STORE_set_flags(authorities.get(), X509_V_FLAG_PARTIAL_CHAIN);
  return authorities;
}

// Checks the own certificate as the peers will do, so that a mistake is found where it was made.
absl::Status verify_own(const CertificateFiles& files, const CertificateList& chain,
                        X509_STORE* authorities) {
  const std::unique_ptr<STACK_OF(X509), StackFree> others(sk_X509_new_null());
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(others.get(), chain[i].get());
  for (const int purpose : {X509_PURPOSE_SSL_SERVER, X509_PURPOSE_SSL_CLIENT}) {
    ERR_clear_error();
    const StorePathPtr path(X509_STORE_CTX_new());
    X509_STORE_CTX_init(path.get(), authorities, chain.front().get(), others.get());
    X509_STORE_CTX_set_purpose(path.get(), purpose);
    X509_VERIFY_PARAM_set_auth_level(X509_STORE_CTX_get0_param(path.get()), kSecurityLevel);
    X509_VERIFY_PARAM_set_depth(X509_STORE_CTX_get0_param(path.get()), kMaxDepth);
    const bool valid = X509_verify_cert(path.get()) == 1;
    ERR_clear_error();
    if (valid) continue;
    X509* const refused = X509_STORE_CTX_get_current_cert(path.get());
    X509* const certificate = refused != nullptr ? refused : chain.front().get();
    return bad("certificate", files.certificate,
               absl::StrCat("cannot be used: the certificate ", describe(certificate), " ",
                            why_refused(X509_STORE_CTX_get_error(path.get()), certificate, files.authority)));
  }
  return absl::OkStatus();
}

absl::StatusOr<SslContextPtr> make_context(const CertificateList& chain, EVP_PKEY* key,
                                           X509_STORE* authorities) {
  SslContextPtr made(SSL_CTX_new(TLS_method()));
  SSL_CTX* const context = made.get();
  if (context == nullptr) return absl::InternalError("TLS cannot be set up: SSL_CTX_new failed");
  SSL_CTX_set_security_level(context, kSecurityLevel);
  bool good = SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
              SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
              SSL_CTX_set_ciphersuites(context, kCiphers) == 1 &&
              SSL_CTX_set1_groups_list(context, kGroups) == 1 &&
              SSL_CTX_use_certificate(context, chain.front().get()) == 1 &&
              SSL_CTX_use_PrivateKey(context, key) == 1 && SSL_CTX_set_num_tickets(context, 0) == 1 &&
              SSL_CTX_set_max_early_data(context, 0) == 1 && SSL_CTX_set_recv_max_early_data(context, 0) == 1;
  for (size_t i = 1; good && i < chain.size(); ++i)
    good = SSL_CTX_add1_chain_cert(context, chain[i].get()) == 1;
  if (!good) return absl::InternalError(absl::StrCat("TLS cannot be set up: ", take_openssl_error().text));
  SSL_CTX_set1_cert_store(context, authorities);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  // The records that this option adds to a handshake serve old middleboxes.
  SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // A connection without traffic keeps no buffers of records. The certificates are sent as they are in the
  // file, not completed from the authority's.
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_NO_AUTO_CHAIN);
  SSL_CTX_set_verify_depth(context, kMaxDepth);
  SSL_CTX_set_max_cert_list(context, kMaxPeerBytes);
  install_checks(context);
  return made;
}

}  // namespace

std::array<FileStamp, 3> stamps_of(const CertificateFiles& files) {
  return {stamp_of(files.certificate), stamp_of(files.key), stamp_of(files.authority)};
}

absl::StatusOr<std::shared_ptr<const CertificateSet>> load_certificates(const CertificateFiles& files) {
  // 1. Read the files.
  const absl::StatusOr<CheckedFile> certificate = read_checked_file(kCertificateFile, files.certificate);
  if (!certificate.ok()) return certificate.status();
  const absl::StatusOr<CheckedFile> key_content = read_checked_file(kKeyFile, files.key);
  if (!key_content.ok()) return key_content.status();
  const absl::StatusOr<CheckedFile> authority = read_checked_file(kAuthorityFile, files.authority);
  if (!authority.ok()) return authority.status();

  // 2. Parse them.
  absl::StatusOr<CertificateList> chain =
      parse_certificates("certificate", files.certificate, certificate->content.reveal());
  if (!chain.ok()) return chain.status();
  absl::StatusOr<KeyPtr> key = parse_key(files.key, key_content->content.reveal());
  if (!key.ok()) return key.status();
  absl::StatusOr<CertificateList> authority_certificates =
      parse_certificates("authority", files.authority, authority->content.reveal());
  if (!authority_certificates.ok()) return authority_certificates.status();

  // 3. Check that they belong together.
  const int fits = X509_check_private_key(chain->front().get(), key->get());
  ERR_clear_error();
  if (fits != 1) {
    return bad("key", files.key,
               absl::StrCat("does not fit the certificate in ", files.certificate,
                            "; give the key with which the certificate was requested"));
  }
  absl::StatusOr<PeerIdentity> worker = worker_of(chain->front().get());
  if (!worker.ok()) {
    return bad("certificate", files.certificate,
               absl::StrCat("cannot be used: the certificate ", worker.status().message()));
  }
  absl::StatusOr<AuthoritiesPtr> authorities = make_authorities(files.authority, *authority_certificates);
  if (!authorities.ok()) return authorities.status();
  if (absl::Status valid = verify_own(files, *chain, authorities->get()); !valid.ok()) return valid;

  // 4. Make the context for connections.
  absl::StatusOr<SslContextPtr> context = make_context(*chain, key->get(), authorities->get());
  if (!context.ok()) return context.status();
  auto set = std::make_shared<CertificateSet>();
  set->files = files;
  set->stamps = {certificate->stamp, key_content->stamp, authority->stamp};
  set->certificate = std::move(chain->front());
  set->worker = *std::move(worker);
  set->context = *std::move(context);
  return set;
}

}  // namespace gradwire::security
