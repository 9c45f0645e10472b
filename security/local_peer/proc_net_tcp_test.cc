#include <string>

#include "gradwire/security/local_peer/tcp_peer_user.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

// Addresses are in the byte order of the machine: these lines are from a little-endian one, as amd64 is.
constexpr absl::string_view kV4 =
    "   3: 0100007F:BDE4 0200007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 41233 1 "
    "00000000c7e0a2c5 20 4 30 10 -1                     ";
constexpr absl::string_view kV6 =
    "   0: 00000000000000000000000001000000:BDE4 0000000000000000FFFF00000200007F:1F90 08 00000000:00000000 "
    "02:000004F8 00000000  65534        0 18446744073709551615 2 0000000000000000 20 4 0 10 -1";

TEST(ProcNetTcp, LineHasBothEndsAndTheOwner) {
  const auto line = parse_proc_net_tcp_line(kV4);
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(line->source.to_string(), "127.0.0.1:48612");
  EXPECT_EQ(line->destination.to_string(), "127.0.0.2:8080");
  EXPECT_EQ(line->socket.user, 1000u);
  EXPECT_EQ(line->socket.inode, 41233u);
  EXPECT_EQ(line->socket.state, FoundSocket::kEstablished);
}

TEST(ProcNetTcp, Ipv6AndMappedAddresses) {
  const auto line = parse_proc_net_tcp_line(kV6);
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(line->source.to_string(), "[::1]:48612");
  EXPECT_EQ(line->destination.to_string(), "127.0.0.2:8080");
  EXPECT_TRUE(line->destination.is_v4());
  EXPECT_EQ(line->socket.user, 65534u);
  EXPECT_EQ(line->socket.inode, ~uint64_t{0});
  EXPECT_EQ(line->socket.state, FoundSocket::kCloseWait);
}

TEST(ProcNetTcp, HeadingAndMalformedLinesAreSkipped) {
  for (const absl::string_view line : {
           "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode",
           "",
           "0: 0100007F:BDE4 0200007F:1F90 01 0 0 0 1000 0",
           "0: 0100007:BDE4 0200007F:1F90 01 0 0 0 1000 0 5",
           "0: 0100007FBDE4 0200007F:1F90 01 0 0 0 1000 0 5",
           "0: 0x00007F:BDE4 0200007F:1F90 01 0 0 0 1000 0 5",
           "0: 0100007F0100007F:BDE4 0200007F:1F90 01 0 0 0 1000 0 5",
           "0: 0100007F:BDE4 0200007F:11F90 01 0 0 0 1000 0 5",
           "0: 0100007F:BDE4 0200007F:1F90 1 0 0 0 1000 0 5",
           "0: 0100007F:BDE4 0200007F:1F90 01 0 0 0 -1 0 5",
           "0: 0100007F:BDE4 0200007F:1F90 01 0 0 0 4294967296 0 5",
           "0: 0100007F:BDE4 0200007F:1F90 01 0 0 0 1000 0 x",
       }) {
    EXPECT_FALSE(parse_proc_net_tcp_line(line).has_value()) << line;
  }
  EXPECT_TRUE(parse_proc_net_tcp_line("0: 0100007F:BDE4 0200007F:1F90 01 0 0 0 1000 0 5").has_value());
}

}  // namespace
}  // namespace gradwire::security
