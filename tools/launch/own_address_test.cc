#include "tools/launch/own_address.h"

#include "gtest/gtest.h"

namespace gradwire::tools {
namespace {

TEST(OwnAddress, LoopbackIsThisMachine) {
  for (const char* host : {"localhost", "127.0.0.1", "::1"}) {
    EXPECT_EQ(is_this_machine(host).value(), true) << host;
    EXPECT_EQ(address_towards(host, 29400).value(), "127.0.0.1") << host;
  }
}

// 192.0.2.0/24 is kept for documents: no interface has it.
TEST(OwnAddress, AnAddressOfNoInterfaceIsAnotherMachine) {
  EXPECT_EQ(is_this_machine("192.0.2.7").value(), false);
}

TEST(OwnAddress, AHostThatNobodyKnowsIsNamed) {
  for (const absl::Status& status : {is_this_machine("no-such-host.invalid").status(),
                                     address_towards("no-such-host.invalid", 1).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(status.message().find("no-such-host.invalid"), absl::string_view::npos) << status;
  }
}

}  // namespace
}  // namespace gradwire::tools
