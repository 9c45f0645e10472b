#include "gradwire/security/tls/certificate_credentials.h"

#include <memory>
#include <utility>

#include "gradwire/security/tls/certificates/certificate_set.h"
#include "gradwire/security/tls/certificates/rotating_certificates.h"
#include "gradwire/security/tls/tls_handshake.h"

namespace gradwire::security {
namespace {

class CertificateCredentials final : public Credentials {
 public:
  explicit CertificateCredentials(std::shared_ptr<const RotatingCertificates> certificates)
      : certificates_(std::move(certificates)), worker_(certificates_->current()->worker) {}

  Kind kind() const override { return Kind::kCertificate; }
  PeerIdentity own_identity() const override { return worker_; }
  std::unique_ptr<SocketHandshake> connected(int socket, const ConnectionFacts& facts) const override {
    return std::make_unique<TlsHandshake>(TlsHandshake::Role::kConnected, socket, facts,
                                          certificates_->current());
  }
  std::unique_ptr<SocketHandshake> accepted(int socket, const ConnectionFacts& facts) const override {
    return std::make_unique<TlsHandshake>(TlsHandshake::Role::kAccepted, socket, facts,
                                          certificates_->current());
  }

 private:
  const std::shared_ptr<const RotatingCertificates> certificates_;
  // A rotation does not change it.
  const PeerIdentity worker_;
};

}  // namespace

absl::StatusOr<CredentialsPtr> make_certificate_credentials(const CertificateFiles& files,
                                                            const Repeat& examine) {
  absl::StatusOr<std::shared_ptr<RotatingCertificates>> certificates =
      RotatingCertificates::open(files, examine);
  if (!certificates.ok()) return certificates.status();
  return std::make_shared<CertificateCredentials>(*std::move(certificates));
}

}  // namespace gradwire::security
