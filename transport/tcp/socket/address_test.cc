#include "gradwire/transport/tcp/socket/address.h"

#include <cstdlib>

#include "gradwire/base/process/host.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

std::vector<std::string> resolved(const std::string& text) {
  auto addresses = resolve_addresses(text);
  if (!addresses.ok()) return {std::string(absl::StatusCodeToString(addresses.status().code()))};
  std::vector<std::string> texts;
  for (const SocketAddress& address : *addresses) texts.push_back(to_string(address));
  return texts;
}

using Texts = std::vector<std::string>;

TEST(ResolveAddresses, NumericAddressesAreKept) {
  EXPECT_EQ(resolved("10.1.2.3:80"), Texts{"10.1.2.3:80"});
  EXPECT_EQ(resolved("[2001:db8::1]:65535"), Texts{"[2001:db8::1]:65535"});
  EXPECT_EQ(resolved("127.0.0.1:1, [::1]:2"), (Texts{"127.0.0.1:1", "[::1]:2"}));
}

TEST(ResolveAddresses, MappedIpv4IsWrittenAsIpv4) {
  EXPECT_EQ(resolved("[::ffff:10.0.0.1]:80"), Texts{"10.0.0.1:80"});
}

TEST(ResolveAddresses, MalformedAddressIsInvalid) {
  for (const char* text : {"", ":", "host", "host:", ":80", "host:0", "host:65536", "host:-1", "host:80x",
                           "::1:80", "[::1]", "[::1]80", "[::1:80", "a:1,", "a:1,b"}) {
    EXPECT_EQ(resolved(text), Texts{"INVALID_ARGUMENT"}) << text;
  }
}

TEST(ResolveAddresses, LoopbackOfThisNetworkIsKept) {
  EXPECT_EQ(resolved(in_network("127.0.0.1:80", network_id())), Texts{"127.0.0.1:80"});
  EXPECT_EQ(in_network("127.0.0.1:80", ""), "127.0.0.1:80");
  EXPECT_EQ(without_network(in_network("127.0.0.1:80", "a-1") + ",10.0.0.1:1"), "127.0.0.1:80,10.0.0.1:1");
}

TEST(ResolveAddresses, LoopbackOfAnotherNetworkIsRefusedWithTheRemedy) {
  const std::string elsewhere = in_network("127.0.0.1:80", "another-host-1");
  const absl::Status status = resolve_addresses(elsewhere).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(
      status.message(),
      "cannot connect to 127.0.0.1:80: that process runs on another host or in another container, and "
      "listens only on the loopback interface there, because it has no credentials; start the job with "
      "the launcher, give all its processes one token (SecurityOptions::token_file, GRADWIRE_TOKEN_FILE) "
      "or certificates, or set SecurityOptions::insecure (GRADWIRE_INSECURE=1) if every process in the "
      "network is trusted");
  // Other addresses of the list are tried.
  EXPECT_EQ(resolved(elsewhere + ",10.0.0.1:1"), Texts{"10.0.0.1:1"});
}

TEST(ResolveAddresses, MalformedNetworkIsInvalid) {
  for (const std::string& text : {std::string("127.0.0.1:80@"), std::string("127.0.0.1:80@a@b"),
                                  std::string("127.0.0.1:80@a b"), "127.0.0.1:80@" + std::string(129, 'a')}) {
    EXPECT_EQ(resolved(text), Texts{"INVALID_ARGUMENT"}) << text;
  }
}

TEST(IsLoopback, AddressesOfTheLoopbackInterfaceOnly) {
  for (const char* text : {"127.0.0.1:1", "127.255.3.4:1", "[::1]:1", "[::ffff:127.0.0.2]:1"}) {
    EXPECT_TRUE(is_loopback(resolve_addresses(text)->front())) << text;
  }
  for (const char* text : {"128.0.0.1:1", "10.0.0.1:1", "0.0.0.0:1", "[::]:1", "[::2]:1", "[::127.0.0.1]:1",
                           "[::ffff:10.0.0.1]:1", "[fe80::1]:1"}) {
    EXPECT_FALSE(is_loopback(resolve_addresses(text)->front())) << text;
  }
  EXPECT_FALSE(is_loopback(SocketAddress()));
  for (const SocketAddress& address : loopback_addresses(7)) EXPECT_TRUE(is_loopback(address));
}

TEST(HostToString, HasNoPortAndNoBrackets) {
  EXPECT_EQ(host_to_string(resolve_addresses("10.1.2.3:80")->front()), "10.1.2.3");
  EXPECT_EQ(host_to_string(resolve_addresses("[2001:db8::1]:80")->front()), "2001:db8::1");
  EXPECT_EQ(host_to_string(resolve_addresses("[::ffff:10.0.0.1]:80")->front()), "10.0.0.1");
}

TEST(JoinHostPort, Ipv6GetsBrackets) {
  EXPECT_EQ(join_host_port("10.0.0.1", 5), "10.0.0.1:5");
  EXPECT_EQ(join_host_port("::1", 5), "[::1]:5");
  EXPECT_EQ(join_host_port("name", 5), "name:5");
}

TEST(AdvertisedHost, TheConfiguredHostAndThenTheEnvironmentDecide) {
  ::setenv("GRADWIRE_HOST_ADDRESS", "from.environment", 1);
  EXPECT_EQ(advertised_host("configured"), "configured");
  EXPECT_EQ(advertised_host(""), "from.environment");
  ::unsetenv("GRADWIRE_HOST_ADDRESS");
  std::string found = advertised_host("");
  EXPECT_FALSE(found.empty());
  EXPECT_EQ(resolved(join_host_port(found, 80)), Texts{join_host_port(found, 80)});
}

TEST(ResolveBindAddresses, AnEmptyHostIsAllInterfaces) {
  auto addresses = resolve_bind_addresses("", 7);
  ASSERT_TRUE(addresses.ok());
  ASSERT_EQ(addresses->size(), 2);
  EXPECT_EQ(to_string((*addresses)[0]), "[::]:7");
  EXPECT_EQ(to_string((*addresses)[1]), "0.0.0.0:7");
}

}  // namespace
}  // namespace gradwire::transport
