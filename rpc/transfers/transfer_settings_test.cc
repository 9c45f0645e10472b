#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gradwire/rpc/transfers/transfer_watch.h"

namespace gradwire::rpc {
namespace {

TEST(TransferSettings, TheOptionComesBeforeTheVariable) {
  EXPECT_EQ(*transfers_over(0, nullptr), 0);
  EXPECT_EQ(*transfers_over(0, ""), 0);
  EXPECT_EQ(*transfers_over(0, "1048576"), 1048576);
  EXPECT_EQ(*transfers_over(0, "0"), 0);
  EXPECT_EQ(*transfers_over(7, "1048576"), 7);
  EXPECT_EQ(*transfers_over(7, "malformed"), 7);
}

TEST(TransferSettings, AMalformedVariableIsInvalid) {
  for (const char* value : {"1 GiB", "-1", "1e9", "99999999999999999999", "\x1b[2J"}) {
    const absl::Status status = transfers_over(0, value).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << value;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("GRADWIRE_LOG_TRANSFERS_OVER: got \""));
    EXPECT_THAT(std::string(status.message()), ::testing::Not(::testing::HasSubstr("\x1b")));
  }
}

}  // namespace
}  // namespace gradwire::rpc
