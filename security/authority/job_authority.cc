#include "gradwire/security/authority/job_authority.h"

#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/name.h"
#include "gradwire/security/tls/certificates/worker_certificate.h"

namespace gradwire::security {
namespace {

// How much the clocks of two hosts may differ.
constexpr absl::Duration kClockSkew = absl::Minutes(5);
constexpr int kSerialBits = 127;

using BignumPtr = std::unique_ptr<BIGNUM, OpenSslFree<BN_free>>;
using ExtensionPtr = std::unique_ptr<X509_EXTENSION, OpenSslFree<X509_EXTENSION_free>>;
using NamePtr = std::unique_ptr<GENERAL_NAME, OpenSslFree<GENERAL_NAME_free>>;
using NamesPtr = std::unique_ptr<GENERAL_NAMES, OpenSslFree<GENERAL_NAMES_free>>;

absl::Status failed() {
  return absl::UnavailableError(absl::StrCat("cannot make a certificate: ", take_openssl_error().text));
}

bool set_serial(X509* certificate) {
  const BignumPtr serial(BN_new());
  return serial != nullptr && BN_rand(serial.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool set_common_name(X509* certificate, const std::string& name) {
  return X509_NAME_add_entry_by_NID(X509_get_subject_name(certificate), NID_commonName, MBSTRING_ASC,
                                    reinterpret_cast<const unsigned char*>(name.data()),
                                    static_cast<int>(name.size()), -1, 0) == 1;
}

// `value` is in the format of openssl.cnf(5). REQUIRES: it has no text of users, which could have a meaning
// there.
bool add_extension(X509* certificate, X509* issuer, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const ExtensionPtr extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool add_uri(X509* certificate, const std::string& uri) {
  const NamesPtr names(GENERAL_NAMES_new());
  NamePtr name(GENERAL_NAME_new());
  ASN1_IA5STRING* text = ASN1_IA5STRING_new();
  if (name == nullptr || text == nullptr) return false;
  GENERAL_NAME_set0_value(name.get(), GEN_URI, text);
  if (ASN1_STRING_set(text, uri.data(), static_cast<int>(uri.size())) != 1) return false;
  if (names == nullptr || sk_GENERAL_NAME_push(names.get(), name.get()) < 1) return false;
  static_cast<void>(name.release());
  return X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), 0, X509V3_ADD_DEFAULT) == 1;
}

absl::StatusOr<Secret> pem_of(EVP_PKEY* key) {
  // This BIO wipes its memory.
  const BioPtr bio(BIO_new(BIO_s_secmem()));
  if (bio == nullptr || PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1)
    return failed();
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return Secret(absl::string_view(data, static_cast<size_t>(size)));
}

absl::StatusOr<std::string> pem_of(X509* certificate) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || PEM_write_bio_X509(bio.get(), certificate) != 1) return failed();
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

absl::StatusOr<KeyPtr> new_key() {
  KeyPtr key(EVP_EC_gen("P-256"));
  if (key == nullptr) return failed();
  return key;
}

// A certificate without a subject, an issuer, extensions and a signature.
absl::StatusOr<CertificatePtr> draft(EVP_PKEY* key, absl::Time from, absl::Time until) {
  CertificatePtr certificate(X509_new());
  if (certificate == nullptr || X509_set_version(certificate.get(), X509_VERSION_3) != 1 ||
      !set_serial(certificate.get()) ||
      ASN1_TIME_set(X509_getm_notBefore(certificate.get()), absl::ToTimeT(from)) == nullptr ||
      ASN1_TIME_set(X509_getm_notAfter(certificate.get()), absl::ToTimeT(until)) == nullptr ||
      X509_set_pubkey(certificate.get(), key) != 1) {
    return failed();
  }
  return certificate;
}

}  // namespace

absl::StatusOr<JobAuthority> JobAuthority::create(const std::string& job, absl::Duration validity) {
  GRADWIRE_RETURN_IF_ERROR(check_name("job", job));
  JobAuthority made;
  made.job_ = job;
  made.from_ = absl::Now() - kClockSkew;
  made.until_ = absl::Now() + validity;
  GRADWIRE_ASSIGN_OR_RETURN(made.key_, new_key());
  GRADWIRE_ASSIGN_OR_RETURN(made.own_, draft(made.key_.get(), made.from_, made.until_));
  X509* const own = made.own_.get();
  // The common name has at most 64 characters (RFC 5280), so it does not contain the job.
  if (!set_common_name(own, "authority of a Gradwire job") ||
      X509_set_issuer_name(own, X509_get_subject_name(own)) != 1 ||
      !add_extension(own, own, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !add_extension(own, own, NID_key_usage, "critical,keyCertSign") ||
      !add_extension(own, own, NID_subject_key_identifier, "hash") ||
      X509_sign(own, made.key_.get(), EVP_sha256()) == 0) {
    return failed();
  }
  GRADWIRE_ASSIGN_OR_RETURN(made.pem_, pem_of(own));
  return made;
}

absl::StatusOr<JobAuthority::Identity> JobAuthority::issue(const std::string& name) const {
  GRADWIRE_RETURN_IF_ERROR(check_name("worker name", name));
  GRADWIRE_ASSIGN_OR_RETURN(const KeyPtr key, new_key());
  GRADWIRE_ASSIGN_OR_RETURN(const CertificatePtr certificate, draft(key.get(), from_, until_));
  X509* const leaf = certificate.get();
  if (!set_common_name(leaf, "worker of a Gradwire job") ||
      X509_set_issuer_name(leaf, X509_get_subject_name(own_.get())) != 1 ||
      !add_extension(leaf, own_.get(), NID_basic_constraints, "critical,CA:FALSE") ||
      !add_extension(leaf, own_.get(), NID_key_usage, "critical,digitalSignature") ||
      !add_extension(leaf, own_.get(), NID_ext_key_usage, "serverAuth,clientAuth") ||
      !add_extension(leaf, own_.get(), NID_subject_key_identifier, "hash") ||
      !add_extension(leaf, own_.get(), NID_authority_key_identifier, "keyid:always") ||
      !add_uri(leaf, worker_uri({.job = job_, .name = name})) ||
      X509_sign(leaf, key_.get(), EVP_sha256()) == 0) {
    return failed();
  }
  Identity identity;
  GRADWIRE_ASSIGN_OR_RETURN(identity.certificate, pem_of(leaf));
  GRADWIRE_ASSIGN_OR_RETURN(identity.key, pem_of(key.get()));
  return identity;
}

}  // namespace gradwire::security
