#include "gradwire/gateway/access/access.h"

#include <string>

#include "gtest/gtest.h"

namespace gradwire::gateway {
namespace {

TEST(GatewayAccess, OnlyTheExactTokenIsAccepted) {
  Options options;
  options.token = "s3cret";
  const Access access(options);
  EXPECT_TRUE(access.check_token("Bearer s3cret").ok());
  for (const char* wrong : {"", "s3cret", "Bearer ", "Bearer s3cre", "Bearer s3crets", "Bearer S3cret",
                            "bearer s3cret", "Bearer s3crets3cret"}) {
    EXPECT_EQ(access.check_token(wrong).code(), absl::StatusCode::kUnauthenticated) << wrong;
  }
  EXPECT_TRUE(Access(Options()).check_token("").ok());
}

TEST(GatewayAccess, OperatorsNeedAPattern) {
  EXPECT_EQ(Access(Options()).check_operator("aten::add").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(Access(Options()).check_callee("anything").ok());
  Options options;
  options.allow_operators = {"aten::add"};
  options.allow = {"model::*"};
  const Access access(options);
  EXPECT_TRUE(access.check_operator("aten::add.Tensor").ok());
  EXPECT_FALSE(access.check_operator("aten::addmm").ok());
  EXPECT_FALSE(access.check_callee("other::f").ok());
}

TEST(GatewayAccess, AnOpenAddressNeedsProtectionOrConsent) {
  Options options;
  for (const char* address : {"127.0.0.1:0", "localhost:80", "[::1]:80", "127.1.2.3:4"}) {
    options.address = address;
    EXPECT_TRUE(check_options(options).ok()) << address;
  }
  for (const char* address :
       {"0.0.0.0:80", "[::]:80", "10.0.0.1:80", "127.example.org:80", "localhost.example.org:1"}) {
    options.address = address;
    EXPECT_EQ(check_options(options).code(), absl::StatusCode::kFailedPrecondition) << address;
  }
  options.insecure = true;
  EXPECT_TRUE(check_options(options).ok());
  options.insecure = false;
  options.token = "t";
  EXPECT_TRUE(check_options(options).ok());
  options.key_file = "k";
  EXPECT_EQ(check_options(options).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::gateway
