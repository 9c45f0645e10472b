#include "gradwire/security/tls/tls_errors.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "absl/strings/str_cat.h"
#include "gradwire/security/tls/certificates/worker_certificate.h"

namespace gradwire::security {
namespace {

// RFC 8446; OpenSSL 3.0 has no name for it.
constexpr int kAlertNoApplicationProtocol = 120;

std::string own_certificate(const CertificateSet& own) {
  return absl::StrCat("this process's certificate ", describe(own.certificate.get()), " in ",
                      own.files.certificate);
}

// Explains an alert of the peer, in a phrase that follows "the peer".
std::string explain_alert(int alert, const std::string& purpose, const CertificateSet& own) {
  const std::string certificate = own_certificate(own);
  switch (alert) {
    case SSL_AD_CERTIFICATE_REQUIRED:
      return absl::StrCat("received no certificate, although this process has ", own.files.certificate,
                          "; check that both ends run the same version of Gradwire");
    case SSL_AD_UNKNOWN_CA:
      return absl::StrCat(
          "refused ", certificate, ": its authority \"",
          describe(X509_get_issuer_name(own.certificate.get())),
          "\" is not in the peer's authority file; give all workers of the job certificates of one "
          "authority");
    case SSL_AD_CERTIFICATE_EXPIRED:
      return absl::StrCat("refused ", certificate, ": it has expired by the peer's clock: it is valid until ",
                          describe(X509_get0_notAfter(own.certificate.get())),
                          "; renew it, or correct the clock of the peer's host");
    case SSL_AD_BAD_CERTIFICATE:
      return absl::StrCat("refused ", certificate,
                          ": it belongs to another job, names no worker, or is not valid ", "before ",
                          describe(X509_get0_notBefore(own.certificate.get())),
                          " and the peer's clock is behind; the error at the peer says which");
    case SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_ACCESS_DENIED:
      return absl::StrCat("refused ", certificate, " (", SSL_alert_desc_string_long(alert),
                          "); the error at the peer says why");
    case kAlertNoApplicationProtocol:
      return absl::StrCat("does not serve connections of the purpose \"", purpose,
                          "\": the port is of another kind; check the address");
    case SSL_AD_PROTOCOL_VERSION:
      return "speaks only versions of TLS older than 1.3; update the peer, or check the address";
    case SSL_AD_HANDSHAKE_FAILURE:
    case SSL_AD_INSUFFICIENT_SECURITY:
      return "shares no cipher, curve or kind of signature with this process; check that both ends run the "
             "same "
             "version of Gradwire";
    default:
      return absl::StrCat("ended the connection with the TLS alert \"", SSL_alert_desc_string_long(alert),
                          "\"; the error at the peer says why");
  }
}

// Explains an error that this process found, in a phrase that follows the failed handshake.
std::string explain_error(const OpenSslError& error) {
  if (error.library == ERR_LIB_SSL) {
    switch (error.reason) {
      case SSL_R_UNSUPPORTED_PROTOCOL:
      case SSL_R_WRONG_SSL_VERSION:
      case SSL_R_VERSION_TOO_LOW:
      case SSL_R_NO_PROTOCOLS_AVAILABLE:
        return "the peer speaks only versions of TLS older than 1.3; update the peer, or check the address";
      case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        return "the peer has no certificate: expected one that the job's authority signed; give every "
               "process of "
               "the job a certificate";
      case SSL_R_NO_SHARED_CIPHER:
      case SSL_R_NO_SUITABLE_KEY_SHARE:
      case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
        return absl::StrCat("the ends share no cipher, curve or kind of signature (", error.text,
                            "); check that both ends run the same version of Gradwire");
      case SSL_R_EXCESSIVE_MESSAGE_SIZE:
        return "the peer sent a message over the limit, expected at most 64 KiB of certificates; shorten its "
               "certificate file";
      case SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC:
        return "a record was changed on the way or has a wrong key (bad record MAC): the network or an "
               "attacker "
               "damages the connection";
      default:
        break;
    }
  }
  return absl::StrCat("the peer violates the protocol: ", error.text.empty() ? "unknown error" : error.text,
                      "; check that the address is that of a process of the job");
}

}  // namespace

absl::Status tls_failure(const OpenSslError& error, const std::string& peer, const std::string& purpose,
                         const CertificateSet& own) {
  const int alert = error.alert();
  const std::string what =
      alert >= 0 ? absl::StrCat("the peer ", explain_alert(alert, purpose, own)) : explain_error(error);
  return absl::UnauthenticatedError(absl::StrCat("TLS with ", peer, " failed: ", what));
}

}  // namespace gradwire::security
