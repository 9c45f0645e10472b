// A process of another user at the loopback interface, where a job without credentials listens.
#include "gradwire/base/testing/other_user.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/transport/tcp/wire/preface.h"

namespace gradwire {
namespace {

// Connects to the port, sends a preface, and returns "closed" if the other end then closes the connection,
// after a refusal at most; "open" if it does not do so within 20 seconds.
std::string knock(const std::string& port) {
  int number = 0;
  (void)absl::SimpleAtoi(port, &number);
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(number));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) return "no connection";
  const std::string preface = transport::Preface{.token = transport::random_token()}.encode();
  (void)::send(socket, preface.data(), preface.size(), MSG_NOSIGNAL);
  const timeval timeout = {.tv_sec = 20, .tv_usec = 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  std::string received;
  char bytes[1024];
  ssize_t got;
  while ((got = ::recv(socket, bytes, sizeof(bytes), 0)) > 0)
    received.append(bytes, static_cast<size_t>(got));
  ::close(socket);
  const bool refused = received.find("user") != std::string::npos;
  return absl::StrCat(got == 0 ? "closed" : "open", refused ? " with a reason" : "");
}

// Uses the store of root at the port, and returns the value that it has read from it, or the error.
std::string use_store(const std::string& port) {
  int number = 0;
  (void)absl::SimpleAtoi(port, &number);
  absl::StatusOr<std::shared_ptr<store::TcpStore>> store = store::TcpStore::open(
      "127.0.0.1", number, {.timeout = absl::Seconds(60), .security = {.allowed_users = {0}}});
  if (!store.ok()) return store.status().ToString();
  (*store)->set("from", "another user");
  return (*store)->get("key");
}

// The input is "knock PORT" or "use PORT".
std::string act(const std::string& input) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(input, ' ');
  return parts.first == "knock" ? knock(parts.second) : use_store(parts.second);
}

class OtherUserOnThisHost : public ::testing::Test {
 protected:
  // Before any thread: the other user's process is made by fork().
  void SetUp() override {
    GRADWIRE_NEEDS("root", OtherUser::available());
    other_ = std::make_unique<OtherUser>(&act);
  }

  std::unique_ptr<OtherUser> other_;
};

TEST_F(OtherUserOnThisHost, IsRefusedByAStoreWithoutCredentials) {
  store::TcpStore store("127.0.0.1", 0, {.is_master = true});
  EXPECT_EQ(other_->ask(absl::StrCat("knock ", store.port())), "closed with a reason");
  store.set("key", "value");
  EXPECT_EQ(store.get("key"), "value");
}

// A server of another user at a port of this host, where a job expects its own store. "listen" returns the
// port, "received" accepts the connections that wait, and returns the number of bytes that have arrived.
std::string serve(const std::string& input) {
  static int listener = -1;
  if (input == "listen") {
    listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
        ::listen(listener, 16) != 0 ||
        ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0)
      return "0";
    return absl::StrCat(ntohs(address.sin_port));
  }
  int connections = 0;
  std::string received;
  int socket = -1;
  while ((socket = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)) >= 0) {
    ++connections;
    char bytes[1024];
    ssize_t got = 0;
    // The client has closed the socket.
    while ((got = ::recv(socket, bytes, sizeof(bytes), 0)) > 0)
      received.append(bytes, static_cast<size_t>(got));
    ::close(socket);
  }
  return absl::StrCat(connections > 0 ? "connections" : "no connection", ", ", received.size(), " bytes");
}

TEST(OtherUserAtThePort, IsNotTakenForTheStoreOfTheJob) {
  GRADWIRE_NEEDS("root", OtherUser::available());
  OtherUser other(&serve);
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(other.ask("listen"), &port));
  const auto refused = store::TcpStore::open("127.0.0.1", port, {.timeout = absl::Seconds(5)});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kPermissionDenied) << refused.status();
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "user 65534")) << refused.status();
  EXPECT_EQ(other.ask("received"), "connections, 0 bytes");
}

TEST_F(OtherUserOnThisHost, IsServedIfItIsAllowed) {
  store::TcpStore store("127.0.0.1", 0,
                        {.is_master = true, .security = {.allowed_users = {OtherUser::kUser}}});
  store.set("key", "value");
  EXPECT_EQ(other_->ask(absl::StrCat("use ", store.port())), "value");
  EXPECT_EQ(store.get("from"), "another user");
}

}  // namespace
}  // namespace gradwire
