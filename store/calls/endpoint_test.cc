#include "gradwire/store/calls/endpoint.h"

#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

TEST(Endpoint, ParsesWhatIsPrinted) {
  for (const char* text :
       {"localhost:1", "10.0.0.1:65535", "[::1]:29500", "[fe80::1%eth0]:7", "a-b.example:0"}) {
    absl::StatusOr<Endpoint> endpoint = parse_endpoint(text);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    EXPECT_EQ(to_string(*endpoint), text);
  }
}

TEST(Endpoint, MalformedEndpointIsInvalid) {
  for (const char* text :
       {"", ":", "host", "host:", ":1", "host:-1", "host:+1", "host: 1", "host:65536", "::1:1", "[::1]",
        "[host]:1", "[]:1", "ho st:1", "host/x:1", "host:99999999999999999999"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(parse_endpoint(text).status())) << text;
  }
}

TEST(Endpoint, LoopbackIsKnownByItsNames) {
  for (const char* host : {"localhost", "LocalHost", "127.0.0.1", "127.8.9.1", "::1"})
    EXPECT_TRUE(is_loopback(host));
  for (const char* host : {"", "127.example", "10.0.0.1", "::2", "localhost.example"})
    EXPECT_FALSE(is_loopback(host));
}

}  // namespace
}  // namespace gradwire::store
