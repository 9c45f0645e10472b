#include "gradwire/gateway/limits/limits.h"

#include <limits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace gradwire::gateway {
namespace {

Quotas::Bounds small() {
  Quotas::Bounds bounds;
  bounds.calls_per_client = 2;
  bounds.calls = 3;
  bounds.sessions_per_client = 1;
  bounds.sessions = 2;
  bounds.bytes_per_call = 100;
  bounds.bytes_per_client = 150;
  bounds.bytes = 200;
  return bounds;
}

TEST(GatewayLimits, CallsAreCountedForEachClientAndInAll) {
  Quotas limits(small());
  std::vector<Quotas::Permit> held;
  for (int i = 0; i < 2; ++i) held.push_back(*limits.enter_call("a"));
  const absl::Status refused = limits.enter_call("a").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(reached_limit(refused).option, "max_calls_per_client");
  held.push_back(*limits.enter_call("b"));
  EXPECT_EQ(reached_limit(limits.enter_call("c").status()).limit, "max_calls");
  held.clear();
  EXPECT_EQ(limits.calls(), 0u);
  EXPECT_EQ(limits.clients(), 0u);
  EXPECT_TRUE(limits.enter_call("a").ok());
}

TEST(GatewayLimits, BytesAreBoundedForACallAClientAndInAll) {
  Quotas limits(small());
  Quotas::Permit one = *limits.enter_call("a");
  EXPECT_EQ(reached_limit(one.add_bytes(101)).option, "max_call_bytes");
  EXPECT_EQ(reached_limit(one.add_bytes(std::numeric_limits<uint64_t>::max())).option, "max_call_bytes");
  EXPECT_TRUE(one.add_bytes(100).ok());
  EXPECT_FALSE(one.add_bytes(1).ok());
  Quotas::Permit two = *limits.enter_call("a");
  EXPECT_EQ(reached_limit(two.add_bytes(51)).option, "max_bytes_per_client");
  Quotas::Permit three = *limits.enter_call("b");
  EXPECT_TRUE(three.add_bytes(100).ok());
  EXPECT_EQ(reached_limit(two.add_bytes(1)).option, "max_bytes");
  one.drop_bytes();
  EXPECT_EQ(limits.bytes(), 100u);
  EXPECT_TRUE(two.add_bytes(1).ok());
}

TEST(GatewayLimits, SessionsAndMovedPermitsAreGivenBackOnce) {
  Quotas limits(small());
  {
    Quotas::Permit session = *limits.enter_session("a");
    Quotas::Permit moved = std::move(session);
    EXPECT_EQ(limits.sessions(), 1u);
    EXPECT_EQ(reached_limit(limits.enter_session("a").status()).option, "max_sessions_per_client");
  }
  EXPECT_EQ(limits.sessions(), 0u);
  EXPECT_EQ(limits.clients(), 0u);
}

}  // namespace
}  // namespace gradwire::gateway
