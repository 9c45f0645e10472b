#include "gradwire/security/credentials.h"

namespace gradwire::security {
namespace {

class Bare : public Credentials {
 public:
  explicit Bare(Kind kind) : kind_(kind) {}

  Kind kind() const override { return kind_; }
  std::unique_ptr<SocketHandshake> connected(int, const ConnectionFacts&) const override { return nullptr; }
  std::unique_ptr<SocketHandshake> accepted(int, const ConnectionFacts&) const override { return nullptr; }

 private:
  const Kind kind_;
};

}  // namespace

CredentialsPtr no_credentials() { return std::make_shared<Bare>(Credentials::Kind::kNone); }
CredentialsPtr insecure_credentials() { return std::make_shared<Bare>(Credentials::Kind::kInsecure); }

}  // namespace gradwire::security
