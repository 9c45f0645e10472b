#include "gradwire/transport/ucx/ucx_options.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

using security::Credentials;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(UcxCredentials, AreATokenOrInsecure) {
  EXPECT_EQ(check_ucx_credentials(Credentials::Kind::kToken), absl::OkStatus());
  EXPECT_EQ(check_ucx_credentials(Credentials::Kind::kInsecure), absl::OkStatus());
}

TEST(UcxCredentials, OthersAreRefusedWithTheRemedy) {
  const absl::Status certificate = check_ucx_credentials(Credentials::Kind::kCertificate);
  EXPECT_EQ(certificate.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(certificate.message()),
              AllOf(HasSubstr("\"ucx\" takes a token"), HasSubstr("has a certificate"),
                    HasSubstr("GRADWIRE_TOKEN_FILE"), HasSubstr("RpcBackendOptions::transports")));
  const absl::Status none = check_ucx_credentials(Credentials::Kind::kNone);
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.message()),
              AllOf(HasSubstr("\"ucx\" takes a token"), HasSubstr("has no credentials"),
                    HasSubstr("GRADWIRE_TOKEN_FILE"), HasSubstr("SecurityOptions::insecure")));
}

}  // namespace
}  // namespace gradwire::transport
