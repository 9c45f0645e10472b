// The contract of all transports, over tcp with credentials.

#include <memory>
#include <string>
#include <utility>

#include "gradwire/security/secret.h"
#include "gradwire/security/testing/certificates.h"
#include "gradwire/security/tls/certificate_credentials.h"
#include "gradwire/security/token/token_credentials.h"
#include "gradwire/transport/conformance.h"
#include "gradwire/transport/tcp/secure/fake_credentials.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::transport {
namespace {

using security::Credentials;
using security::CredentialsPtr;

constexpr char kToken[] = "a token of the job, of 32 bytes at least";

std::string kind_name(const testing::TestParamInfo<TransportKind>& info) { return info.param.name; }

TransportKind kind(std::string name, const CredentialsPtr& credentials, int stripes = 0) {
  return {.name = std::move(name), .make = [credentials, stripes] {
            TcpOptions options;
            options.bind_address = "127.0.0.1";
            options.credentials = credentials;
            options.purpose = "test";
            options.own_name = "worker";
            // Under a sanitizer, on a busy machine, the fake stream is slow.
            options.user_timeout = absl::Minutes(2);
            options.stripes = stripes;
            options.stripe_from_bytes = 64 << 10;
            return make_tcp_transport(options);
          }};
}

INSTANTIATE_TEST_SUITE_P(Fake, TransportConformance,
                         testing::Values(kind("fake_stream", fake_credentials()),
                                         kind("fake_token",
                                              fake_credentials({.kind = Credentials::Kind::kToken,
                                                                .has_stream = false}))),
                         kind_name);

// Most messages with large buffers are sent over several sockets.
INSTANTIATE_TEST_SUITE_P(
    FakeStriped, TransportConformance,
    testing::Values(kind("fake_token_striped",
                         fake_credentials({.kind = Credentials::Kind::kToken, .has_stream = false}), 3)),
    kind_name);

INSTANTIATE_TEST_SUITE_P(
    Token, TransportConformance,
    testing::Values(kind("token", *security::make_token_credentials(security::Secret(kToken), true)),
                    kind("token_striped", *security::make_token_credentials(security::Secret(kToken), true),
                         3)),
    kind_name);

CredentialsPtr certificates() {
  static const security::TestAuthority authority;
  return *security::make_certificate_credentials(authority.worker("job", "worker"));
}

INSTANTIATE_TEST_SUITE_P(Tls, TransportConformance, testing::Values(kind("tls", certificates())), kind_name);

}  // namespace
}  // namespace gradwire::transport
