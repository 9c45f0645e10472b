#include "gradwire/transport/ucx/ucx_transport.h"

#include "gradwire/security/credentials.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/token/token_credentials.h"
#include "gradwire/transport/conformance.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

TransportKind kind(const std::string& name, const std::string& methods, bool sleeps_at_once = false,
                   const security::CredentialsPtr& credentials = security::insecure_credentials()) {
  return {name,
          [methods, sleeps_at_once, credentials] {
            UcxOptions options;
            options.methods = methods;
            options.credentials = credentials;
            options.purpose = "test";
            options.own_name = "worker";
            if (sleeps_at_once) options.wait = {absl::ZeroDuration(), absl::ZeroDuration()};
            return make_ucx_transport(options);
          },
          false, false};
}

security::CredentialsPtr token() {
  return *security::make_token_credentials(security::Secret("a token of the job, of 32 bytes at least"),
                                           true);
}

INSTANTIATE_TEST_SUITE_P(Ucx, TransportConformance,
                         ::testing::Values(kind("ucx", ""), kind("tcp", "tcp"), kind("sleeping", "", true),
                                           kind("token", "", false, token()),
                                           kind("sleeping_token", "", true, token())),
                         [](const auto& info) { return info.param.name; });

TEST(Ucx, IsThere) { EXPECT_TRUE(probe_ucx().ok()) << probe_ucx(); }

}  // namespace
}  // namespace gradwire::transport
