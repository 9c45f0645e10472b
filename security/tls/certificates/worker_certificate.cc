#include "gradwire/security/tls/certificates/worker_certificate.h"

#include <openssl/x509v3.h>

#include <ctime>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gradwire/base/name.h"
#include "gradwire/security/tls/certificates/openssl.h"

namespace gradwire::security {
namespace {

constexpr absl::string_view kScheme = "gradwire://";
constexpr size_t kShown = 256;

using NamesPtr = std::unique_ptr<GENERAL_NAMES, OpenSslFree<GENERAL_NAMES_free>>;

std::string text_of(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

std::string validity(X509* certificate) {
  return absl::StrCat("it is valid from ", describe(X509_get0_notBefore(certificate)), " until ",
                      describe(X509_get0_notAfter(certificate)), ", and this host's clock says ",
                      text_of(absl::Now()));
}

}  // namespace

absl::StatusOr<PeerIdentity> worker_of(X509* certificate) {
  const NamesPtr names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::string found;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    // The text may contain any bytes, NUL too.
    const ASN1_IA5STRING* text = name->d.uniformResourceIdentifier;
    const absl::string_view uri(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                                static_cast<size_t>(ASN1_STRING_length(text)));
    if (uri.substr(0, kScheme.size()) != kScheme) continue;
    if (!found.empty()) {
      return absl::InvalidArgumentError(
          "names several workers: got more than one subject alternative name \"URI:gradwire://...\", "
          "expected "
          "one; give each worker a certificate of its own");
    }
    found = std::string(uri);
  }
  if (found.empty()) {
    return absl::InvalidArgumentError(
        "names no worker: expected one subject alternative name \"URI:gradwire://JOB/NAME\"; make it with "
        "subjectAltName=URI:gradwire://JOB/NAME");
  }
  const absl::string_view path = absl::StripPrefix(found, kScheme);
  const size_t slash = path.find('/');
  PeerIdentity worker{.proof = PeerIdentity::Proof::kCertificate};
  if (slash != absl::string_view::npos) {
    worker.job = std::string(path.substr(0, slash));
    worker.name = std::string(path.substr(slash + 1));
  }
  if (!check_name("job", worker.job).ok() || !check_name("worker name", worker.name).ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has a malformed subject alternative name: got \"", absl::CHexEscape(found.substr(0, kShown)),
        "\", expected URI:gradwire://JOB/NAME, each of 1 to ", kMaxNameLength,
        " characters of A-Z a-z 0-9 _ . : -; make a new certificate"));
  }
  return worker;
}

std::string worker_uri(const PeerIdentity& worker) {
  return absl::StrCat(kScheme, worker.job, "/", worker.name);
}

std::string describe(const X509_NAME* name) {
  char text[kShown];
  if (X509_NAME_oneline(name, text, sizeof(text)) == nullptr) return "an unreadable name";
  return absl::CHexEscape(text);
}

std::string describe(X509* certificate) {
  const absl::StatusOr<PeerIdentity> worker = worker_of(certificate);
  if (worker.ok()) return absl::StrCat("\"", worker_uri(*worker), "\"");
  return absl::StrCat("with the subject \"", describe(X509_get_subject_name(certificate)), "\"");
}

std::string describe(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return "an unreadable time";
  return text_of(absl::FromTM(parts, absl::UTCTimeZone()));
}

std::string why_refused(int error, X509* certificate, const std::string& authority) {
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return absl::StrCat("has expired: ", validity(certificate),
                          "; renew the certificate, or this host's clock is wrong");
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return absl::StrCat("is not valid yet: ", validity(certificate),
                          "; wait, or this host's clock is wrong (or was that of the host that made the "
                          "certificate)");
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_SUBJECT_ISSUER_MISMATCH:
    case X509_V_ERR_AKID_SKID_MISMATCH:
    case X509_V_ERR_AKID_ISSUER_SERIAL_MISMATCH:
      return absl::StrCat("is not signed by the authority in ", authority, ": its issuer is \"",
                          describe(X509_get_issuer_name(certificate)),
                          "\"; give all workers of the job certificates of one authority");
    case X509_V_ERR_INVALID_PURPOSE:
      return "has an extended key usage that excludes one of the roles of a worker; make it without, or with "
             "both serverAuth and clientAuth";
    case X509_V_ERR_EE_KEY_TOO_SMALL:
    case X509_V_ERR_CA_KEY_TOO_SMALL:
    case X509_V_ERR_CA_MD_TOO_WEAK:
      return absl::StrCat("is too weak: ", X509_verify_cert_error_string(error),
                          "; use a key of P-256, Ed25519, or RSA of at least 2048 bits, and SHA-256");
    default:
      return absl::StrCat("is refused: ", X509_verify_cert_error_string(error), "; the authority is in ",
                          authority);
  }
}

}  // namespace gradwire::security
