#include "gradwire/security/token/token_credentials.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/security/token/record.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Progress = SocketHandshake::Progress;

constexpr int kDeadlineMs = 60'000;

const std::string kJobToken(32, 't');

CredentialsPtr credentials(const std::string& token = kJobToken, bool check_addresses = true) {
  absl::StatusOr<CredentialsPtr> made = make_token_credentials(Secret(token), check_addresses);
  EXPECT_TRUE(made.ok()) << made.status();
  return *made;
}

struct Pair {
  Descriptor client;
  Descriptor server;
};

void make_non_blocking(const Descriptor& socket) { ASSERT_EQ(::fcntl(socket.get(), F_SETFL, O_NONBLOCK), 0); }

Pair unix_pair() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// A connection over the loopback interface: the server listens on an address of this family.
absl::StatusOr<Pair> tcp_pair(int family) {
  Descriptor listener(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid()) return absl::UnavailableError("no such sockets");
  sockaddr_in6 any6 = {};
  any6.sin6_family = AF_INET6;
  sockaddr_in any4 = {};
  any4.sin_family = AF_INET;
  any4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int zero = 0;
  ::setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
  const int bound = family == AF_INET6
                        ? ::bind(listener.get(), reinterpret_cast<sockaddr*>(&any6), sizeof(any6))
                        : ::bind(listener.get(), reinterpret_cast<sockaddr*>(&any4), sizeof(any4));
  if (bound != 0 || ::listen(listener.get(), 1) != 0) return absl::UnavailableError("cannot listen");
  sockaddr_in6 own = {};
  socklen_t size = sizeof(own);
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&own), &size);
  // The port is at the same place in both kinds of addresses. The client is always an IPv4 socket.
  any4.sin_port = own.sin6_port;
  Descriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(client.get(), reinterpret_cast<sockaddr*>(&any4), sizeof(any4)) != 0)
    return absl::UnavailableError("cannot connect");
  Descriptor server(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!server.valid()) return absl::UnavailableError("cannot accept");
  make_non_blocking(client);
  make_non_blocking(server);
  return Pair{std::move(client), std::move(server)};
}

Pair tcp4() {
  absl::StatusOr<Pair> pair = tcp_pair(AF_INET);
  EXPECT_TRUE(pair.ok()) << pair.status();
  return *std::move(pair);
}

ConnectionFacts facts(const std::string& name, const std::string& purpose = "rpc") {
  return {.purpose = purpose, .own_name = name};
}

void wait_for(int socket, short events) {
  pollfd entry = {.fd = socket, .events = events};
  ASSERT_EQ(::poll(&entry, 1, kDeadlineMs), 1);
}

// One end of a handshake. It closes its socket when it fails, as owners do.
struct SocketEnd {
  Descriptor& socket;
  std::unique_ptr<SocketHandshake> handshake;
  absl::StatusOr<Progress> last = Progress::kToRead;

  bool over() const { return !last.ok() || *last == Progress::kDone; }
  bool done() const { return last.ok() && *last == Progress::kDone; }
  void step() {
    last = handshake->step();
    if (!last.ok()) socket.reset();
  }
  std::string message() const { return std::string(last.status().message()); }
};

// Runs both ends until each is over.
void run(SocketEnd& client, SocketEnd& server) {
  while (!client.over() || !server.over()) {
    std::vector<pollfd> waiting;
    for (SocketEnd* end : {&client, &server}) {
      if (!end->over()) end->step();
      if (end->over()) continue;
      const auto events = static_cast<short>(*end->last == Progress::kToRead ? POLLIN : POLLOUT);
      waiting.push_back({.fd = end->socket.get(), .events = events});
    }
    if (!waiting.empty()) ASSERT_GT(::poll(waiting.data(), waiting.size(), kDeadlineMs), 0);
  }
}

struct Outcome {
  absl::Status client;
  absl::Status server;
  PeerIdentity client_sees;
  PeerIdentity server_sees;
};

Outcome shake(Pair& pair, const Credentials& client_credentials, const Credentials& server_credentials,
              const std::string& client_purpose = "rpc") {
  SocketEnd client{pair.client, client_credentials.connected(pair.client.get(), facts("a", client_purpose))};
  SocketEnd server{pair.server, server_credentials.accepted(pair.server.get(), facts("b"))};
  run(client, server);
  return {client.last.status(), server.last.status(), client.handshake->peer(), server.handshake->peer()};
}

std::string read_all(int socket) {
  char bytes[4096];
  const ssize_t got = ::recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT);
  return {bytes, static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
}

TEST(TokenCredentials, ATokenIsLongEnough) {
  const absl::StatusOr<CredentialsPtr> made = make_token_credentials(Secret(std::string(31, 'x')), true);
  EXPECT_TRUE(absl::IsInvalidArgument(made.status()));
  EXPECT_EQ(made.status().message(),
            "the token has 31 bytes, expected at least 32; make one with: (umask 077; openssl rand -hex 32 > "
            "FILE)");
  EXPECT_EQ(credentials()->kind(), Credentials::Kind::kToken);
  EXPECT_TRUE(credentials()->may_leave_host());
}

TEST(TokenCredentials, BothEndsLearnTheNameOfThePeer) {
  for (const bool tcp : {false, true}) {
    Pair pair = tcp ? tcp4() : unix_pair();
    const Outcome outcome = shake(pair, *credentials(), *credentials());
    EXPECT_TRUE(outcome.client.ok()) << outcome.client;
    EXPECT_TRUE(outcome.server.ok()) << outcome.server;
    EXPECT_EQ(outcome.client_sees.proof, PeerIdentity::Proof::kToken);
    EXPECT_EQ(outcome.client_sees.name, "b");
    EXPECT_EQ(outcome.client_sees.job, "");
    EXPECT_EQ(outcome.server_sees.proof, PeerIdentity::Proof::kToken);
    EXPECT_EQ(outcome.server_sees.name, "a");
  }
}

// The server sees "::ffff:127.0.0.1" where the client sees "127.0.0.1".
TEST(TokenCredentials, AnIpv4ClientAgreesWithAnIpv6Server) {
  absl::StatusOr<Pair> pair = tcp_pair(AF_INET6);
  GRADWIRE_NEEDS("ipv6", pair.status());
  const Outcome outcome = shake(*pair, *credentials(), *credentials());
  EXPECT_TRUE(outcome.client.ok()) << outcome.client;
  EXPECT_TRUE(outcome.server.ok()) << outcome.server;
}

TEST(TokenCredentials, TheBytesBehindTheHandshakeStayInTheSocket) {
  for (const bool tcp : {false, true}) {
    Pair pair = tcp ? tcp4() : unix_pair();
    SocketEnd client{pair.client, credentials()->connected(pair.client.get(), facts("a"))};
    SocketEnd server{pair.server, credentials()->accepted(pair.server.get(), facts("b"))};
    while (!server.over()) {
      client.step();
      server.step();
      ASSERT_FALSE(client.done());
    }
    ASSERT_TRUE(server.done()) << server.last.status();
    // The welcome and frames are in the socket together.
    ASSERT_EQ(::send(pair.server.get(), "frames", 6, 0), 6);
    run(client, server);
    ASSERT_TRUE(client.done()) << client.last.status();
    EXPECT_EQ(client.handshake->take_stream(), nullptr);
    wait_for(pair.client.get(), POLLIN);
    EXPECT_EQ(read_all(pair.client.get()), "frames");
  }
}

// The records pass through two connections, a byte at a time.
TEST(TokenCredentials, BytesThatArriveOneAtATimeAreSufficient) {
  Pair near = unix_pair(), far = unix_pair();
  SocketEnd client{near.client, credentials()->connected(near.client.get(), facts("a"))};
  SocketEnd server{far.server, credentials()->accepted(far.server.get(), facts("b"))};
  int steps = 0;
  while (!client.over() || !server.over()) {
    ASSERT_LT(++steps, 10'000);
    if (!client.over()) client.step();
    if (!server.over()) server.step();
    char byte;
    if (::recv(near.server.get(), &byte, 1, 0) == 1) {
      ASSERT_EQ(::send(far.client.get(), &byte, 1, 0), 1);
    }
    if (::recv(far.client.get(), &byte, 1, 0) == 1) {
      ASSERT_EQ(::send(near.server.get(), &byte, 1, 0), 1);
    }
  }
  EXPECT_TRUE(client.done()) << client.last.status();
  EXPECT_TRUE(server.done()) << server.last.status();
  EXPECT_GT(steps, 100);
}

TEST(TokenCredentials, ASocketWithoutRoomIsWaitedFor) {
  for (const bool tcp : {false, true}) {
    Pair pair = tcp ? tcp4() : unix_pair();
    // The client's handshake finds the socket full, and then room that grows by a few bytes.
    std::size_t junk = 0;
    const std::string block(1000, 'x');
    for (const std::size_t size : {block.size(), std::size_t{1}}) {
      ssize_t sent;
      while ((sent = ::send(pair.client.get(), block.data(), size, MSG_DONTWAIT)) > 0)
        junk += static_cast<std::size_t>(sent);
    }
    SocketEnd client{pair.client, credentials()->connected(pair.client.get(), facts("a"))};
    client.step();
    ASSERT_TRUE(client.last.ok()) << client.last.status();
    ASSERT_EQ(*client.last, Progress::kToWrite);
    for (std::size_t left = junk; left > 0;) {
      char bytes[700];
      wait_for(pair.server.get(), POLLIN);
      const ssize_t got = ::recv(pair.server.get(), bytes, std::min(left, sizeof(bytes)), 0);
      ASSERT_GT(got, 0);
      left -= static_cast<std::size_t>(got);
      client.step();
      ASSERT_TRUE(client.last.ok()) << client.last.status();
    }
    SocketEnd server{pair.server, credentials()->accepted(pair.server.get(), facts("b"))};
    run(client, server);
    EXPECT_TRUE(client.done()) << client.last.status();
    EXPECT_TRUE(server.done()) << server.last.status();
  }
}

TEST(TokenCredentials, AnotherTokenIsReportedAtBothEnds) {
  for (const bool tcp : {false, true}) {
    Pair pair = tcp ? tcp4() : unix_pair();
    const Outcome outcome = shake(pair, *credentials(std::string(32, 'x')), *credentials());
    EXPECT_TRUE(absl::IsUnauthenticated(outcome.client)) << outcome.client;
    EXPECT_TRUE(absl::IsUnauthenticated(outcome.server)) << outcome.server;
    EXPECT_THAT(std::string(outcome.client.message()),
                HasSubstr("failed: the two processes have different tokens; start both with the same token"));
    EXPECT_THAT(std::string(outcome.server.message()),
                HasSubstr("failed: it refused the connection: the two processes have different tokens"));
    EXPECT_THAT(
        std::string(outcome.client.message()),
        HasSubstr(tcp ? "the handshake with \"b\" at 127.0.0.1:" : "the handshake with \"b\" at the peer "));
  }
}

TEST(TokenCredentials, AnotherPurposeIsReportedAtBothEnds) {
  Pair pair = tcp4();
  const Outcome outcome = shake(pair, *credentials(), *credentials(), "store");
  EXPECT_THAT(std::string(outcome.server.message()),
              HasSubstr("this is the port of an rpc worker, not of a store"));
  EXPECT_THAT(std::string(outcome.client.message()),
              HasSubstr("it refused the connection: this is the port of an rpc worker, not of a store"));
}

// A process between the two connections passes all bytes on.
TEST(TokenCredentials, ARelayOverTcpIsRefusedUnlessAddressesAreNotChecked) {
  for (const bool check : {true, false}) {
    Pair near = tcp4(), far = tcp4();
    const CredentialsPtr both = credentials(kJobToken, check);
    SocketEnd client{near.client, both->connected(near.client.get(), facts("a"))};
    SocketEnd server{far.server, both->accepted(far.server.get(), facts("b"))};
    while (!client.over() || !server.over()) {
      if (!client.over()) client.step();
      if (!server.over()) server.step();
      std::string bytes = read_all(near.server.get());
      ::send(far.client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      bytes = read_all(far.client.get());
      ::send(near.server.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
    EXPECT_EQ(client.done(), !check);
    EXPECT_EQ(server.done(), !check);
    if (check) EXPECT_THAT(server.message(), HasSubstr("something between them relays it"));
    if (check) EXPECT_THAT(client.message(), HasSubstr("SecurityOptions::check_addresses = false"));
  }
}

TEST(TokenCredentials, AClosedConnectionIsUnavailable) {
  {
    Pair pair = unix_pair();
    SocketEnd client{pair.client, credentials()->connected(pair.client.get(), facts("a"))};
    pair.server.reset();
    while (!client.over()) client.step();
    EXPECT_TRUE(absl::IsUnavailable(client.last.status())) << client.last.status();
    EXPECT_THAT(client.message(),
                HasSubstr("before it sent anything; read the log of that process, and check "
                          "that it runs the same version of Gradwire with a token"));
  }
  Pair pair = tcp4();
  SocketEnd server{pair.server, credentials()->accepted(pair.server.get(), facts("b"))};
  ASSERT_EQ(::send(pair.client.get(), "GWa1", 4, 0), 4);
  pair.client.reset();
  while (!server.over()) server.step();
  EXPECT_TRUE(absl::IsUnavailable(server.last.status())) << server.last.status();
  EXPECT_THAT(server.message(), HasSubstr("failed: the peer closed the connection; read the log"));
}

TEST(TokenCredentials, AnotherProtocolIsRefused) {
  Pair pair = unix_pair();
  SocketEnd server{pair.server, credentials()->accepted(pair.server.get(), facts("b"))};
  ASSERT_EQ(::send(pair.client.get(), "GET / HTTP/1.0\r\n\r\n", 18, 0), 18);
  server.step();
  EXPECT_TRUE(absl::IsUnauthenticated(server.last.status()));
  EXPECT_THAT(server.message(),
              HasSubstr("it begins with \"GET \", expected \"GWa1\"; check that the address"));
  EXPECT_EQ(read_all(pair.client.get()).substr(0, 5), "GWa1\x05");
}

// The peer has no token: it refuses at once and closes, while this process still sends.
TEST(TokenCredentials, ARefusalBeforeTheHandshakeIsShown) {
  for (const bool tcp : {false, true}) {
    Pair pair = tcp ? tcp4() : unix_pair();
    const std::string refusal = Record::refusal("the accepting process has no token").encode();
    ASSERT_EQ(::send(pair.server.get(), refusal.data(), refusal.size(), 0), refusal.size());
    pair.server.reset();
    SocketEnd client{pair.client, credentials()->connected(pair.client.get(), facts("a"))};
    while (!client.over()) client.step();
    EXPECT_TRUE(absl::IsUnauthenticated(client.last.status()));
    EXPECT_THAT(client.message(), HasSubstr("it refused the connection: the accepting process has no token"));
  }
}

TEST(TokenCredentials, AFailureStays) {
  Pair pair = unix_pair();
  const auto handshake = credentials()->connected(pair.client.get(), facts(std::string(256, 'x')));
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = handshake->step().status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("the name has 256 bytes, expected 0 to 255"));
  }
}

TEST(TokenCredentials, EachConnectionHasItsOwnNonces) {
  std::vector<std::string> seen;
  for (int i = 0; i < 3; ++i) {
    Pair pair = unix_pair();
    const auto handshake = credentials()->connected(pair.client.get(), facts("a"));
    ASSERT_TRUE(handshake->step().ok());
    const std::string hello = read_all(pair.server.get());
    EXPECT_THAT(hello, HasSubstr("rpc"));
    EXPECT_THAT(hello, Not(HasSubstr(kJobToken)));
    EXPECT_THAT(seen, Not(::testing::Contains(hello)));
    seen.push_back(hello);
  }
}

TEST(TokenCredentials, ServesSeveralThreads) {
  const CredentialsPtr shared = credentials();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&shared] {
      for (int i = 0; i < 20; ++i) {
        Pair pair = unix_pair();
        const Outcome outcome = shake(pair, *shared, *shared);
        EXPECT_TRUE(outcome.client.ok() && outcome.server.ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gradwire::security
