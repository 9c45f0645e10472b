#include "gradwire/transport/tcp/socket/listening_socket.h"

#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "gradwire/base/free_port.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

const char* const kHost = "127.0.0.1";

int refuse() {
  errno = EADDRINUSE;
  return -1;
}

TEST(ListeningSocket, TakesAFreePortAndReportsIt) {
  const absl::StatusOr<ListeningSocket> socket = listening_socket(kHost, 0);
  ASSERT_TRUE(socket.ok()) << socket.status();
  EXPECT_GT(socket->port, 0);
}

TEST(ListeningSocket, PortOfAListenerIsTaken) {
  const absl::StatusOr<ListeningSocket> first = listening_socket(kHost, 0);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::StatusOr<ListeningSocket> second = listening_socket(kHost, first->port);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(second.status().message(), "Address already in use")) << second.status();
}

// Linux refuses both of two sockets that call listen() at the same instant.
TEST(ListeningSocket, RefusedByListenTriesAgain) {
  int calls = 0;
  const absl::StatusOr<ListeningSocket> socket = internal::listening_socket(
      kHost, free_port(),
      [&](int descriptor) { return ++calls == 1 ? refuse() : ::listen(descriptor, SOMAXCONN); });
  EXPECT_TRUE(socket.ok()) << socket.status();
  EXPECT_EQ(calls, 2);
}

TEST(ListeningSocket, FirstListenerAfterATieKeepsThePort) {
  const int port = free_port();
  std::optional<absl::StatusOr<ListeningSocket>> other;
  int calls = 0;
  const absl::StatusOr<ListeningSocket> socket = internal::listening_socket(kHost, port, [&](int) {
    ++calls;
    other = listening_socket(kHost, port);
    return refuse();
  });
  ASSERT_TRUE(other.has_value() && other->ok());
  EXPECT_EQ(socket.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(calls, 1);
}

TEST(ListeningSocket, GivesUpWhenEveryAttemptIsRefused) {
  const absl::StatusOr<ListeningSocket> socket =
      internal::listening_socket(kHost, free_port(), [](int) { return refuse(); });
  EXPECT_TRUE(absl::StrContains(socket.status().message(), "Address already in use")) << socket.status();
}

TEST(ListeningSocket, OneOfTwoThatStartTogetherListens) {
  constexpr int kRounds = 500;
  const int port = free_port();
  for (int round = 0; round < kRounds; ++round) {
    std::atomic<int> ready{0};
    auto start = [&](absl::StatusOr<ListeningSocket>& result) {
      ++ready;
      while (ready < 2) std::this_thread::yield();
      result = listening_socket(kHost, port);
    };
    absl::StatusOr<ListeningSocket> first, second;
    std::thread other([&] { start(second); });
    start(first);
    other.join();
    ASSERT_NE(first.ok(), second.ok())
        << "round " << round << ": " << first.status() << ", " << second.status();
  }
}

TEST(LoopbackListeningSockets, HaveTheSamePortInBothFamilies) {
  const absl::StatusOr<ListeningSockets> sockets = loopback_listening_sockets(0);
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  EXPECT_GT(sockets->port, 0);
  const std::vector<SocketAddress> addresses = loopback_addresses(sockets->port);
  // A host may lack IPv6.
  ASSERT_GE(sockets->descriptors.size(), 1u);
  ASSERT_LE(sockets->descriptors.size(), 2u);
  for (const Descriptor& descriptor : sockets->descriptors) {
    SocketAddress bound;
    bound.length = sizeof(bound.storage);
    ASSERT_EQ(::getsockname(descriptor.get(), bound.get(), &bound.length), 0);
    EXPECT_TRUE(is_loopback(bound));
    Descriptor client(::socket(bound.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(client.get(), bound.get(), bound.length), 0);
    EXPECT_EQ(to_string(bound), to_string(addresses[bound.storage.ss_family == AF_INET ? 0 : 1]));
  }
}

TEST(LoopbackListeningSockets, APortThatOneFamilyUsesIsTaken) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    const absl::StatusOr<ListeningSocket> first = listening_socket(host, 0);
    if (!first.ok()) continue;  // This host has no IPv6.
    const absl::StatusOr<ListeningSockets> second = loopback_listening_sockets(first->port);
    EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable) << host;
    EXPECT_TRUE(absl::StrContains(second.status().message(), "Address already in use")) << second.status();
  }
}

}  // namespace
}  // namespace gradwire::transport
