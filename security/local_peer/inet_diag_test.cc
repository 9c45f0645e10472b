#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>

#include "gradwire/security/local_peer/tcp_peer_user.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

constexpr uint32_t kSequence = 7;

TcpEnd v4(uint8_t last, uint16_t port) {
  const uint8_t address[4] = {127, 0, 0, last};
  return tcp_end_v4(address, port);
}

TcpEnd v6(uint8_t last, uint16_t port) {
  TcpEnd end;
  end.address[15] = last;
  end.port = port;
  return end;
}

struct Answer {
  nlmsghdr header = {};
  inet_diag_msg message = {};

  Answer(const TcpEnd& source, const TcpEnd& destination, uint8_t family) {
    header.nlmsg_len = sizeof(*this);
    header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    header.nlmsg_seq = kSequence;
    message.idiag_family = family;
    message.idiag_state = FoundSocket::kEstablished;
    message.idiag_uid = 1000;
    message.idiag_inode = 77;
    message.id.idiag_sport = htons(source.port);
    message.id.idiag_dport = htons(destination.port);
    const std::size_t skip = family == AF_INET ? 12 : 0;
    std::memcpy(message.id.idiag_src, source.address.data() + skip, 16 - skip);
    std::memcpy(message.id.idiag_dst, destination.address.data() + skip, 16 - skip);
  }
  std::string bytes() const { return std::string(reinterpret_cast<const char*>(this), sizeof(*this)); }
};

std::string error_answer(int32_t error, uint32_t sequence = kSequence) {
  nlmsghdr header = {};
  header.nlmsg_len = NLMSG_LENGTH(sizeof(nlmsgerr));
  header.nlmsg_type = NLMSG_ERROR;
  header.nlmsg_seq = sequence;
  nlmsgerr body = {};
  body.error = error;
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) +
         std::string(reinterpret_cast<const char*>(&body), sizeof(body));
}

TEST(InetDiag, RequestNamesBothEnds) {
  const std::string bytes = inet_diag_request(v4(1, 0x1234), v4(2, 80), kSequence);
  ASSERT_EQ(bytes.size(), NLMSG_HDRLEN + sizeof(inet_diag_req_v2));
  nlmsghdr header;
  inet_diag_req_v2 body;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::memcpy(&body, bytes.data() + NLMSG_HDRLEN, sizeof(body));
  EXPECT_EQ(header.nlmsg_len, bytes.size());
  EXPECT_EQ(header.nlmsg_flags, NLM_F_REQUEST);  // Not a dump.
  EXPECT_EQ(body.sdiag_family, AF_INET);
  EXPECT_EQ(body.sdiag_protocol, IPPROTO_TCP);
  EXPECT_EQ(body.id.idiag_sport, htons(0x1234));
  EXPECT_EQ(body.id.idiag_dport, htons(80));
  EXPECT_EQ(body.id.idiag_src[0], htonl(0x7f000001));
  EXPECT_EQ(body.id.idiag_dst[0], htonl(0x7f000002));
  EXPECT_EQ(body.id.idiag_src[3], 0u);
}

TEST(InetDiag, AnswerHasUserInodeAndState) {
  for (const uint8_t family : {AF_INET, AF_INET6}) {
    const auto found =
        parse_inet_diag_answer(Answer(v4(1, 5), v4(2, 80), family).bytes(), v4(1, 5), v4(2, 80), kSequence);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->user, 1000u);
    EXPECT_EQ(found->inode, 77u);
    EXPECT_TRUE(found->has_user());
  }
  EXPECT_TRUE(
      parse_inet_diag_answer(Answer(v6(1, 5), v6(2, 80), AF_INET6).bytes(), v6(1, 5), v6(2, 80), kSequence)
          .ok());
}

// Bytes behind the message, such as its attributes, are allowed.
TEST(InetDiag, AttributesAreSkipped) {
  Answer answer(v4(1, 5), v4(2, 80), AF_INET);
  answer.header.nlmsg_len += 8;
  EXPECT_TRUE(
      parse_inet_diag_answer(answer.bytes() + std::string(8, '\1') + "rest", v4(1, 5), v4(2, 80), kSequence)
          .ok());
}

TEST(InetDiag, AnswerAboutAnotherSocketIsInvalid) {
  const std::string bytes = Answer(v4(1, 5), v4(2, 80), AF_INET).bytes();
  for (const auto& [source, destination] :
       {std::pair(v4(3, 5), v4(2, 80)), std::pair(v4(1, 6), v4(2, 80)), std::pair(v4(1, 5), v4(3, 80)),
        std::pair(v4(1, 5), v4(2, 81)), std::pair(v6(1, 5), v4(2, 80)), std::pair(v4(2, 80), v4(1, 5))}) {
    EXPECT_EQ(parse_inet_diag_answer(bytes, source, destination, kSequence).status().code(),
              absl::StatusCode::kInvalidArgument)
        << source.to_string() << " " << destination.to_string();
  }
  EXPECT_EQ(parse_inet_diag_answer(bytes, v4(1, 5), v4(2, 80), kSequence + 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  // A socket that listens at the port.
  TcpEnd nothing = v4(0, 0);
  nothing.address = {};
  EXPECT_EQ(parse_inet_diag_answer(Answer(v4(1, 5), nothing, AF_INET).bytes(), v4(1, 5), v4(2, 80), kSequence)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(InetDiag, EveryTruncationIsInvalid) {
  for (const std::string& whole : {Answer(v4(1, 5), v4(2, 80), AF_INET).bytes(), error_answer(-ENOENT)}) {
    for (std::size_t size = 0; size < whole.size(); ++size) {
      std::string cut = whole.substr(0, size);
      EXPECT_EQ(parse_inet_diag_answer(cut, v4(1, 5), v4(2, 80), kSequence).status().code(),
                absl::StatusCode::kInvalidArgument);
      // The same with a length that says so.
      if (size < sizeof(uint32_t)) continue;
      const auto length = static_cast<uint32_t>(size);
      std::memcpy(cut.data(), &length, sizeof(length));
      EXPECT_FALSE(parse_inet_diag_answer(cut, v4(1, 5), v4(2, 80), kSequence).ok());
    }
  }
}

TEST(InetDiag, ErrorsOfTheKernelAreMapped) {
  const auto code = [](int error) {
    return parse_inet_diag_answer(error_answer(error), v4(1, 5), v4(2, 80), kSequence).status().code();
  };
  EXPECT_EQ(code(-ENOENT), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(-EPERM), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code(-EOPNOTSUPP), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code(0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(5), absl::StatusCode::kInvalidArgument);
}

TEST(TcpEnd, MappedAddressEqualsItsIpv4Address) {
  sockaddr_storage storage = {};
  auto& mapped = reinterpret_cast<sockaddr_in6&>(storage);
  mapped.sin6_family = AF_INET6;
  mapped.sin6_port = htons(80);
  ASSERT_EQ(::inet_pton(AF_INET6, "::ffff:127.0.0.9", &mapped.sin6_addr), 1);
  EXPECT_EQ(tcp_end(storage), v4(9, 80));
  EXPECT_TRUE(tcp_end(storage)->is_loopback());
  EXPECT_EQ(tcp_end(storage)->to_string(), "127.0.0.9:80");
  storage = {};
  auto& plain = reinterpret_cast<sockaddr_in&>(storage);
  plain.sin_family = AF_INET;
  plain.sin_port = htons(80);
  plain.sin_addr.s_addr = htonl(0x7f000009);
  EXPECT_EQ(tcp_end(storage), v4(9, 80));
  storage.ss_family = AF_UNIX;
  EXPECT_FALSE(tcp_end(storage).has_value());
}

TEST(TcpEnd, OnlyLoopbackAddressesAreLoopback) {
  EXPECT_TRUE(v6(1, 80).is_loopback());
  EXPECT_EQ(v6(1, 80).to_string(), "[::1]:80");
  EXPECT_FALSE(v6(2, 80).is_loopback());
  const uint8_t other[4] = {128, 0, 0, 1};
  EXPECT_FALSE(tcp_end_v4(other, 80).is_loopback());
  // 7f00::1 begins with 127, but is an IPv6 address.
  TcpEnd odd = v6(1, 80);
  odd.address[0] = 127;
  EXPECT_FALSE(odd.is_loopback());
}

TEST(FoundSocket, WithoutAProcessOrAConnectionThereIsNoUser) {
  EXPECT_TRUE((FoundSocket{0, 5, FoundSocket::kEstablished}.has_user()));
  EXPECT_FALSE((FoundSocket{0, 0, FoundSocket::kFinWait1}.has_user()));
  constexpr uint8_t kSynSent = 2, kListen = 10, kTimeWait = 6;
  for (const uint8_t state : {kSynSent, kListen, kTimeWait})
    EXPECT_FALSE((FoundSocket{0, 5, state}.has_user()));
}

}  // namespace
}  // namespace gradwire::security
