
#include "gradwire/base/process/host.h"
#include "gradwire/store/calls/endpoint.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

TEST(ThisMachine, LoopbackAndUnspecifiedAddressesAreThisMachine) {
  for (const char* host : {"localhost", "127.0.0.1", "127.0.1.1", "::1", "0.0.0.0", "::"}) {
    EXPECT_EQ(is_this_machine(host).value(), true) << host;
  }
}

// A machine may not be able to resolve its own name.
TEST(ThisMachine, OwnNameIsThisMachine) { EXPECT_EQ(is_this_machine(host_name()).value_or(true), true); }

// 192.0.2.0/24 and 2001:db8::/32 are reserved for documentation, so no interface has them.
TEST(ThisMachine, AddressOfNoInterfaceIsAnotherMachine) {
  EXPECT_EQ(is_this_machine("192.0.2.7").value(), false);
  EXPECT_EQ(is_this_machine("2001:db8::7").value(), false);
}

TEST(ThisMachine, UnknownHostIsNamed) {
  const absl::Status status = is_this_machine("no-such-host.invalid").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("no-such-host.invalid"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace gradwire::store
