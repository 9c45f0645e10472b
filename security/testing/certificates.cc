#include "gradwire/security/testing/certificates.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "gradwire/security/tls/certificates/openssl.h"

namespace gradwire::security {
namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "test certificates: %s failed: %s\n", what, take_openssl_error().text.c_str());
  std::abort();
}

KeyPtr make_key(TestAuthority::KeyType type) {
  EVP_PKEY* key = nullptr;
  switch (type) {
    case TestAuthority::KeyType::kP256:
      key = EVP_EC_gen("P-256");
      break;
    case TestAuthority::KeyType::kEd25519:
      key = EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
      break;
    case TestAuthority::KeyType::kRsa2048:
      key = EVP_RSA_gen(2048);
      break;
    case TestAuthority::KeyType::kRsa1024:
      key = EVP_RSA_gen(1024);
      break;
  }
  require(key != nullptr, "a key");
  return KeyPtr(key);
}

void add_extension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  require(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1, "an extension");
  X509_EXTENSION_free(extension);
}

CertificatePtr make_certificate(const std::string& name, EVP_PKEY* key, absl::Duration from,
                                absl::Duration until) {
  CertificatePtr certificate(X509_new());
  X509_set_version(certificate.get(), X509_VERSION_3);
  uint64_t serial = 0;
  require(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial)) == 1, "a serial number");
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial >> 1);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.data()),
                             static_cast<int>(name.size()), -1, 0);
  const absl::Time now = absl::Now();
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()), absl::ToTimeT(now + from));
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()), absl::ToTimeT(now + until));
  require(X509_set_pubkey(certificate.get(), key) == 1, "a public key");
  return certificate;
}

void sign(X509* certificate, EVP_PKEY* key) {
  // Ed25519 has a hash of its own.
  const EVP_MD* hash = EVP_PKEY_is_a(key, "ED25519") == 1 ? nullptr : EVP_sha256();
  require(X509_sign(certificate, key, hash) > 0, "a signature");
}

template <class Write>
std::string to_pem(const Write& write) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  require(write(bio.get()) == 1, "PEM");
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &bytes);
  return {bytes, static_cast<size_t>(size)};
}

std::string to_pem(X509* certificate) {
  return to_pem([certificate](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

}  // namespace

struct TestAuthority::Keys {
  KeyPtr key;
  CertificatePtr certificate;
};

TestAuthority::TestAuthority(const std::string& name) : TestAuthority(name, nullptr) {}

TestAuthority::TestAuthority(const std::string& name, const TestAuthority* issuer)
    : keys_(std::make_unique<Keys>()) {
  keys_->key = make_key(KeyType::kP256);
  keys_->certificate = make_certificate(name, keys_->key.get(), -absl::Hours(24), absl::Hours(24));
  X509* const own = keys_->certificate.get();
  X509* const signer = issuer != nullptr ? issuer->keys_->certificate.get() : own;
  X509_set_issuer_name(own, X509_get_subject_name(signer));
  add_extension(own, signer, NID_basic_constraints, "critical,CA:TRUE");
  add_extension(own, signer, NID_key_usage, "critical,keyCertSign,cRLSign");
  sign(own, issuer != nullptr ? issuer->keys_->key.get() : keys_->key.get());
  pem_ = to_pem(own);

  std::string folder = (std::filesystem::temp_directory_path() / "gradwire_certificates_XXXXXX").string();
  require(::mkdtemp(folder.data()) != nullptr, "a temporary folder");
  folder_ = folder;
}

TestAuthority::~TestAuthority() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::unique_ptr<TestAuthority> TestAuthority::intermediate() const {
  return std::unique_ptr<TestAuthority>(new TestAuthority("Intermediate authority", this));
}

TestAuthority::Pem TestAuthority::issue(const Contents& contents) const {
  const KeyPtr key = make_key(contents.key);
  const CertificatePtr certificate = make_certificate("Worker", key.get(), contents.from, contents.until);
  X509* const issuer = keys_->certificate.get();
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer));
  std::vector<std::string> names;
  for (const std::string& uri : contents.uris) names.push_back("URI:" + uri);
  for (const std::string& address : contents.addresses) names.push_back("IP:" + address);
  if (!names.empty())
    add_extension(certificate.get(), issuer, NID_subject_alt_name, absl::StrJoin(names, ","));
  if (contents.only_server) add_extension(certificate.get(), issuer, NID_ext_key_usage, "serverAuth");
  sign(certificate.get(), keys_->key.get());
  return {.certificate = to_pem(certificate.get()),
          .key = to_pem([&key](BIO* bio) {
            return PEM_write_bio_PKCS8PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

CertificateFiles TestAuthority::write(const Pem& pem, const std::string& authority_pem) const {
  return {.certificate = write_file(pem.certificate, 0644),
          .key = write_file(pem.key),
          .authority = write_file(authority_pem, 0644)};
}

CertificateFiles TestAuthority::worker(const std::string& job, const std::string& name) const {
  return files({.uris = {absl::StrCat("gradwire://", job, "/", name)}});
}

CertificateFiles TestAuthority::files(Contents contents) const {
  if (contents.uris.empty()) contents.uris = {"gradwire://job/a"};
  return write(issue(contents), pem_);
}

std::string TestAuthority::write_file(const std::string& text, unsigned mode) const {
  const std::string path = absl::StrCat(folder_, "/", files_++, ".pem");
  std::ofstream(path) << text;
  require(::chmod(path.c_str(), mode) == 0, "chmod");
  return path;
}

void replace_file(const std::string& path, const std::string& text) {
  struct stat old {};
  require(::stat(path.c_str(), &old) == 0, "stat");
  const std::string next = path + ".next";
  std::ofstream(next) << text;
  require(::chmod(next.c_str(), old.st_mode & 07777) == 0, "chmod");
  require(std::rename(next.c_str(), path.c_str()) == 0, "rename");
}

std::string read_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace gradwire::security
