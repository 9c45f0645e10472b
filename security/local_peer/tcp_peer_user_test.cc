#include "gradwire/security/local_peer/tcp_peer_user.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/testing/other_user.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/security/local_peer/tcp_end.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

struct Address {
  sockaddr_storage storage = {};
  socklen_t length = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

Address address_of(const std::string& host, uint16_t port) {
  Address address;
  if (absl::StrContains(host, ':')) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    EXPECT_EQ(::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr), 1);
    address.length = sizeof(v6);
  } else {
    auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    EXPECT_EQ(::inet_pton(AF_INET, host.c_str(), &v4.sin_addr), 1);
    address.length = sizeof(v4);
  }
  return address;
}

Descriptor new_socket(const std::string& host) {
  Descriptor socket(
      ::socket(absl::StrContains(host, ':') ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1, off = 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  return socket;
}

absl::StatusOr<Descriptor> listen_at(const std::string& host, uint16_t port = 0) {
  Descriptor socket = new_socket(host);
  Address address = address_of(host, port);
  if (::bind(socket.get(), address.get(), address.length) != 0 || ::listen(socket.get(), 16) != 0)
    return errno_status(absl::StrCat("cannot listen at ", host), errno);
  return socket;
}

TcpEnd end_of(const Descriptor& socket, bool peer = false) {
  Address address;
  address.length = sizeof(address.storage);
  EXPECT_EQ((peer ? ::getpeername : ::getsockname)(socket.get(), address.get(), &address.length), 0);
  return tcp_end(address.storage).value_or(TcpEnd());
}

// Connects from `from_port` of the loopback address if that is not 0.
Descriptor connect_to(const std::string& host, uint16_t port, uint16_t from_port = 0) {
  Descriptor socket = new_socket(host);
  if (from_port != 0) {
    Address from = address_of("127.0.0.1", from_port);
    if (::bind(socket.get(), from.get(), from.length) != 0) return Descriptor();
  }
  Address address = address_of(host, port);
  if (::connect(socket.get(), address.get(), address.length) != 0) return Descriptor();
  return socket;
}

// Closes the socket with a reset.
void reset(Descriptor& socket) {
  const linger now = {1, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  socket.reset();
}

Descriptor accept_at(const Descriptor& listener) {
  return Descriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
}

// The client of another user: "HOST PORT FROM_PORT" connects, "end", "close" and "reset" use the connection.
std::string serve_client(const std::string& input) {
  static Descriptor socket;
  if (input == "end") {
    ::shutdown(socket.get(), SHUT_WR);
  } else if (input == "close") {
    socket.reset();
  } else if (input == "reset") {
    reset(socket);
  } else {
    const std::vector<std::string> words = absl::StrSplit(input, ' ');
    uint32_t port = 0, from = 0;
    if (words.size() != 3 || !absl::SimpleAtoi(words[1], &port) || !absl::SimpleAtoi(words[2], &from))
      return "bad command";
    socket = connect_to(words[0], static_cast<uint16_t>(port), static_cast<uint16_t>(from));
    if (!socket.valid()) return "not connected";
  }
  return "ok";
}

// The address at which the server listens, and the one to which the client connects.
using Addresses = std::pair<std::string, std::string>;
const std::vector<Addresses> kAddresses = {
    {"127.0.0.1", "127.0.0.1"},        {"127.0.0.7", "127.0.0.7"}, {"::", "127.0.0.1"}, {"::", "::1"},
    {"127.0.0.1", "::ffff:127.0.0.1"}, {"::", "::ffff:127.0.0.1"}};

TEST(TcpPeerUser, OwnUserIsFoundOverEachKindOfAddress) {
  for (const auto& [at, to] : kAddresses) {
    SCOPED_TRACE(absl::StrCat(at, " ", to));
    const absl::StatusOr<Descriptor> listener = listen_at(at);
    if (absl::StrContains(at, ':')) {
      GRADWIRE_NEEDS("ipv6", listener.status());
    }
    ASSERT_TRUE(listener.ok()) << listener.status();
    const Descriptor client = connect_to(to, end_of(*listener).port);
    const Descriptor accepted = accept_at(*listener);
    ASSERT_TRUE(accepted.valid());
    EXPECT_EQ(value_or_throw(tcp_peer_user(accepted.get())), ::geteuid());
    EXPECT_EQ(value_or_throw(tcp_peer_user(client.get())), ::geteuid());
  }
}

TEST(TcpServerUser, IsFoundBeforeAndAfterTheServerAccepts) {
  for (const auto& [at, to] : kAddresses) {
    SCOPED_TRACE(absl::StrCat(at, " ", to));
    const absl::StatusOr<Descriptor> listener = listen_at(at);
    if (absl::StrContains(at, ':')) {
      GRADWIRE_NEEDS("ipv6", listener.status());
    }
    const Descriptor client = connect_to(to, end_of(*listener).port);
    EXPECT_EQ(value_or_throw(tcp_server_user(client.get())), ::geteuid());
    const FoundSocket in_proc = value_or_throw(find_tcp_listener_in_proc(end_of(client, true)));
    EXPECT_EQ(in_proc.user, ::geteuid());
    EXPECT_NE(in_proc.inode, 0);
    const absl::StatusOr<FoundSocket> by_netlink = find_tcp_listener_by_netlink(end_of(client, true));
    if (by_netlink.ok()) {
      EXPECT_EQ(by_netlink->inode, in_proc.inode);
    }
    const Descriptor accepted = accept_at(*listener);
    EXPECT_EQ(value_or_throw(tcp_server_user(client.get())), ::geteuid());
  }
}

TEST(TcpServerUser, IsUnavailableOnceTheServerIsGone) {
  Descriptor listener = value_or_throw(listen_at("127.0.0.1"));
  const Descriptor waiting = connect_to("127.0.0.1", end_of(listener).port);
  const Descriptor client = connect_to("127.0.0.1", end_of(listener).port);
  EXPECT_TRUE(absl::IsNotFound(find_tcp_listener_in_proc(end_of(client)).status()));
  EXPECT_FALSE(find_tcp_listener_by_netlink(end_of(client)).ok());
  Descriptor accepted = accept_at(listener);
  accepted.reset();
  // The first client was accepted, the second one is still waiting.
  EXPECT_TRUE(absl::IsUnavailable(tcp_server_user(waiting.get()).status()));
  EXPECT_TRUE(tcp_server_user(client.get()).ok());
  listener.reset();
  EXPECT_TRUE(absl::IsUnavailable(tcp_server_user(client.get()).status()));
}

// The connection does not leave the host if both ends have the same address.
TEST(TcpPeerUser, OwnAddressOfTheHostIsLocal) {
  // A connected datagram socket finds an address of this host; it sends nothing.
  const Descriptor probe(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  Address far = address_of("192.0.2.1", 9);
  if (::connect(probe.get(), far.get(), far.length) != 0) return;  // The machine has no network.
  std::string host = end_of(probe).to_string();
  host.resize(host.rfind(':'));
  const absl::StatusOr<Descriptor> listener = listen_at(host);
  ASSERT_TRUE(listener.ok()) << listener.status();
  const Descriptor client = connect_to(host, end_of(*listener).port);
  const Descriptor accepted = accept_at(*listener);
  EXPECT_EQ(value_or_throw(tcp_peer_user(accepted.get())), ::geteuid());
}

TEST(TcpPeerUser, BothWaysFindTheSameSocket) {
  for (const auto& [at, to] : kAddresses) {
    SCOPED_TRACE(absl::StrCat(at, " ", to));
    const absl::StatusOr<Descriptor> listener = listen_at(at);
    if (absl::StrContains(at, ':')) {
      GRADWIRE_NEEDS("ipv6", listener.status());
    }
    const Descriptor client = connect_to(to, end_of(*listener).port);
    const Descriptor accepted = accept_at(*listener);
    const TcpEnd source = end_of(client), destination = end_of(accepted);
    const FoundSocket in_proc = value_or_throw(find_tcp_socket_in_proc(source, destination));
    EXPECT_EQ(in_proc.user, ::geteuid());
    EXPECT_TRUE(in_proc.has_user());
    const absl::StatusOr<FoundSocket> by_netlink = find_tcp_socket_by_netlink(source, destination);
    if (absl::IsUnavailable(by_netlink.status())) continue;
    EXPECT_EQ(value_or_throw(by_netlink).inode, in_proc.inode);
    EXPECT_EQ(by_netlink->user, in_proc.user);
    EXPECT_EQ(by_netlink->state, in_proc.state);
  }
}

// The kernel's lookup finds a socket that listens when it finds no connection.
TEST(TcpPeerUser, SocketThatListensIsNotAPeer) {
  const Descriptor listener = value_or_throw(listen_at("127.0.0.1"));
  const Descriptor client = connect_to("127.0.0.1", end_of(listener).port);
  const Descriptor accepted = accept_at(listener);
  const Descriptor other = value_or_throw(listen_at("127.0.0.1"));
  EXPECT_FALSE(find_tcp_socket_by_netlink(end_of(other), end_of(accepted)).ok());
  EXPECT_TRUE(absl::IsNotFound(find_tcp_socket_in_proc(end_of(other), end_of(accepted)).status()));
}

TEST(TcpPeerUser, OtherKindsOfSocketsAreErrors) {
  const Descriptor listener = value_or_throw(listen_at("127.0.0.1"));
  EXPECT_FALSE(tcp_peer_user(listener.get()).ok());
  EXPECT_FALSE(tcp_peer_user(-1).ok());
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const Descriptor first(ends[0]), second(ends[1]);
  EXPECT_FALSE(tcp_peer_user(first.get()).ok());
}

// The thread asks in another network namespace than that of the connection, as it would if the peer were in
// another one.
TEST(TcpPeerUser, PeerInAnotherNetworkNamespaceIsRefused) {
  const Descriptor listener = value_or_throw(listen_at("127.0.0.1"));
  const Descriptor client = connect_to("127.0.0.1", end_of(listener).port);
  const Descriptor accepted = accept_at(listener);
  const pid_t child = fork_with_objects();
  if (child == 0) {
    if (::unshare(CLONE_NEWNET) != 0) ::_exit(2);
    ::_exit(absl::IsPermissionDenied(tcp_peer_user(accepted.get()).status()) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  GRADWIRE_NEEDS("network_namespaces", WEXITSTATUS(status) == 2
                                           ? absl::PermissionDeniedError("unshare() is not permitted")
                                           : absl::OkStatus());
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// The server of another user: "listen" makes a port, "accept" accepts a connection, "close" ends to listen.
std::string serve_port(const std::string& input) {
  static Descriptor listener, accepted;
  if (input == "listen") {
    absl::StatusOr<Descriptor> made = listen_at("127.0.0.1");
    if (!made.ok()) return "0";
    listener = *std::move(made);
    return absl::StrCat(end_of(listener).port);
  }
  if (input == "accept") accepted = accept_at(listener);
  if (input == "close") listener.reset();
  return "ok";
}

TEST(TcpServerOfAnotherUser, IsFoundBeforeAndAfterItAccepts) {
  GRADWIRE_NEEDS("root", OtherUser::available());
  OtherUser other(serve_port);
  uint32_t port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(other.ask("listen"), &port));
  const Descriptor client = connect_to("127.0.0.1", static_cast<uint16_t>(port));
  EXPECT_EQ(value_or_throw(tcp_server_user(client.get())), OtherUser::kUser);
  other.ask("accept");
  EXPECT_EQ(value_or_throw(tcp_server_user(client.get())), OtherUser::kUser);
  // A process of this user takes over the port, but not the connection.
  other.ask("close");
  const absl::StatusOr<Descriptor> next = listen_at("127.0.0.1", static_cast<uint16_t>(port));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(value_or_throw(tcp_server_user(client.get())), OtherUser::kUser);
}

class TcpPeerOfAnotherUser : public ::testing::Test {
 protected:
  void SetUp() override {
    GRADWIRE_NEEDS("root", OtherUser::available());
    other_.emplace(serve_client);
    listener_ = value_or_throw(listen_at("127.0.0.1"));
    // A port that is free, also after its use.
    const Descriptor probe = value_or_throw(listen_at("127.0.0.1"));
    from_ = end_of(probe).port;
  }

  // Connects the other user's process from the port from_.
  Descriptor connect() {
    EXPECT_EQ(other_->ask(absl::StrCat("127.0.0.1 ", end_of(listener_).port, " ", from_)), "ok");
    return accept_at(listener_);
  }

  std::optional<OtherUser> other_;
  Descriptor listener_;
  uint16_t from_ = 0;
};

TEST_F(TcpPeerOfAnotherUser, ItsUserIsFound) {
  const Descriptor accepted = connect();
  EXPECT_EQ(value_or_throw(tcp_peer_user(accepted.get())), OtherUser::kUser);
  EXPECT_EQ(value_or_throw(find_tcp_socket_in_proc(end_of(accepted, true), end_of(accepted))).user,
            OtherUser::kUser);
  other_->ask("end");
  EXPECT_EQ(value_or_throw(tcp_peer_user(accepted.get())), OtherUser::kUser);
}

// The kernel says user 0, the user of this process, for a socket that no process has open.
TEST_F(TcpPeerOfAnotherUser, IsNotTakenForRootAfterItHasClosed) {
  const Descriptor accepted = connect();
  other_->ask("close");
  EXPECT_TRUE(absl::IsPermissionDenied(tcp_peer_user(accepted.get()).status()));
  for (const auto& found : {find_tcp_socket_by_netlink(end_of(accepted, true), end_of(accepted)),
                            find_tcp_socket_in_proc(end_of(accepted, true), end_of(accepted))}) {
    EXPECT_TRUE(!found.ok() || !found->has_user());
  }
}

// A process of this user comes from the same port, after the other user has broken its connection.
TEST_F(TcpPeerOfAnotherUser, IsNotTakenForTheNextProcessAtItsPort) {
  const Descriptor accepted = connect();
  other_->ask("reset");
  const Descriptor second = connect_to("127.0.0.1", end_of(listener_).port, from_);
  ASSERT_TRUE(second.valid()) << std::strerror(errno);
  const Descriptor accepted_second = accept_at(listener_);
  EXPECT_EQ(value_or_throw(tcp_peer_user(accepted_second.get())), ::geteuid());
  EXPECT_FALSE(tcp_peer_user(accepted.get()).ok());
}

// As above, and a process of this user listens at the port.
TEST_F(TcpPeerOfAnotherUser, IsNotTakenForAProcessThatListensAtItsPort) {
  const Descriptor accepted = connect();
  other_->ask("reset");
  const absl::StatusOr<Descriptor> listens = listen_at("127.0.0.1", from_);
  ASSERT_TRUE(listens.ok()) << listens.status();
  EXPECT_FALSE(tcp_peer_user(accepted.get()).ok());
}

}  // namespace
}  // namespace gradwire::security
