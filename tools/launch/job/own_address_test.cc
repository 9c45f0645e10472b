#include "gradwire/tools/launch/job/own_address.h"

#include "gtest/gtest.h"

namespace gradwire::tools {
namespace {

TEST(OwnAddress, TowardsThisMachineAloneIsLoopback) {
  for (const char* host : {"localhost", "127.0.0.1", "::1"}) {
    EXPECT_EQ(address_towards(host, 29400).value(), "127.0.0.1") << host;
  }
}

TEST(OwnAddress, UnknownHostIsNamed) {
  const absl::Status status = address_towards("no-such-host.invalid", 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("no-such-host.invalid"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace gradwire::tools
