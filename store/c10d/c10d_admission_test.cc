#include "gradwire/store/c10d/c10d_admission.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/manual_clock.h"
#include "gradwire/base/testing/log_lines.h"
#include "gradwire/base/testing/other_user.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/store/c10d/c10d_protocol.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/store/tcp_store_server.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

constexpr char kServed[] = "served";
constexpr char kRefused[] = "closed after 0 bytes";

Descriptor connect_to(int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return Descriptor();
  // A test that reaches it fails.
  const timeval timeout = {60, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  return socket;
}

// Connects as PyTorch's TCPStore does, sets the key "from_pytorch" and asks for an answer, in one packet.
std::string use_store(const std::string& port) {
  int number = 0;
  if (!absl::SimpleAtoi(port, &number)) return "not a port";
  const Descriptor socket = connect_to(number);
  if (!socket.valid()) return "not connected";
  std::string bytes(kC10dGreeting);
  bytes.push_back(static_cast<char>(C10dQuery::kSet));
  put_c10d_key(bytes, "from_pytorch");
  put_c10d_string(bytes, "value");
  bytes.push_back(static_cast<char>(C10dQuery::kPing));
  put_c10d_number(bytes, 77, 4);
  if (::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size()))
    return "not sent";
  char answer[4];
  std::size_t got = 0;
  while (got < sizeof(answer)) {
    const ssize_t more = ::recv(socket.get(), answer + got, sizeof(answer) - got, 0);
    if (more < 0 && errno != ECONNRESET) return "no answer";
    if (more <= 0) return absl::StrCat("closed after ", got, " bytes");
    got += static_cast<std::size_t>(more);
  }
  return load_c10d_number({answer, sizeof(answer)}) == 77 ? kServed : "wrong answer";
}

std::unique_ptr<TcpStoreServer> start(std::optional<bool> allow, bool insecure = false) {
  return value_or_throw(TcpStoreServer::start(
      {.host = "localhost", .allow_unauthenticated_pytorch = allow, .security = {.insecure = insecure}}));
}

bool has_key(const TcpStoreServer& server) {
  return TcpStore("localhost", server.port()).check({"from_pytorch"});
}

TEST(C10dAdmission, ProcessOfTheSameUserIsServed) {
  const auto server = start(false);
  EXPECT_EQ(use_store(absl::StrCat(server->port())), kServed);
  EXPECT_TRUE(has_key(*server));
}

TEST(C10dAdmission, AMasterPassesTheOptionToItsServer) {
  GRADWIRE_NEEDS("root", OtherUser::available());
  OtherUser other(&use_store);
  TcpStore master("localhost", 0, {.is_master = true, .allow_unauthenticated_pytorch = false});
  EXPECT_EQ(other.ask(absl::StrCat(master.port())), kRefused);
  EXPECT_FALSE(master.check({"from_pytorch"}));
}

TEST(C10dAdmission, ProcessOfAnotherUserIsRefusedAndItsBytesAreNotRead) {
  GRADWIRE_NEEDS("root", OtherUser::available());
  OtherUser other(&use_store);
  const auto server = start(false);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(other.ask(absl::StrCat(server->port())), kRefused);
  const std::vector<std::string> lines = captured_lines("the store refused a connection");
  ASSERT_EQ(lines.size(), 1u);
  for (const absl::string_view part : {"client of PyTorch's TCPStore at 127.0.0.1:", "belongs to user 65534",
                                       "run it on this host as user 0", "SecurityOptions::allowed_users",
                                       "TcpStoreOptions::allow_unauthenticated_pytorch"}) {
    EXPECT_TRUE(absl::StrContains(lines[0], part)) << lines[0];
  }
  EXPECT_FALSE(has_key(*server));
  EXPECT_EQ(use_store(absl::StrCat(server->port())), kServed);
}

TEST(C10dAdmission, EveryUserIsServedIfTheOptionSaysSoOrTheStoreIsInsecure) {
  GRADWIRE_NEEDS("root", OtherUser::available());
  OtherUser other(&use_store);
  for (const bool insecure : {false, true}) {
    const auto server = start(insecure ? std::nullopt : std::make_optional(true), insecure);
    EXPECT_EQ(other.ask(absl::StrCat(server->port())), kServed);
    EXPECT_TRUE(has_key(*server));
  }
  EXPECT_EQ(other.ask(absl::StrCat(start(std::nullopt)->port())), kRefused);
}

// A connection of the other user's process, accepted by the test.
class C10dConnections : public ::testing::Test {
 protected:
  void SetUp() override {
    GRADWIRE_NEEDS("root", OtherUser::available());
    // It keeps its connection until the next command.
    other_ = std::make_unique<OtherUser>([socket = std::make_shared<Descriptor>()](const std::string& port) {
      int number = 0;
      *socket = absl::SimpleAtoi(port, &number) ? connect_to(number) : Descriptor();
      return socket->valid() ? "ok" : "not connected";
    });
    listener_ = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    ASSERT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
    ASSERT_EQ(::listen(listener_.get(), 16), 0);
    ASSERT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    ASSERT_EQ(other_->ask(absl::StrCat(ntohs(address.sin_port))), "ok");
    accepted_ = Descriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }

  std::unique_ptr<OtherUser> other_;
  Descriptor listener_;
  Descriptor accepted_;
};

TEST_F(C10dConnections, UserOfTheListIsAdmitted) {
  using Mode = C10dAdmission::Mode;
  const auto check = [this](C10dAdmission::Options options) {
    return C10dAdmission(std::move(options)).check_in_loop(accepted_.get(), "127.0.0.1:1");
  };
  EXPECT_TRUE(check({Mode::kAllowedUsers, {OtherUser::kUser}}).ok());
  EXPECT_TRUE(check({Mode::kEveryone}).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(check({Mode::kAllowedUsers, {OtherUser::kUser - 1}})));
  // A process that has gone was not checked.
  other_->ask("");
  EXPECT_TRUE(absl::IsPermissionDenied(check({Mode::kAllowedUsers, {OtherUser::kUser, 0}})));
}

TEST_F(C10dConnections, RefusalsAreLoggedOncePerAddressAndMinute) {
  ManualClock clock;
  C10dAdmission admission({.mode = C10dAdmission::Mode::kAllowedUsers}, clock);
  testing::internal::CaptureStderr();
  for (int minute = 0; minute < 2; ++minute) {
    for (int port = 1; port < 4; ++port) {
      EXPECT_FALSE(admission.check_in_loop(accepted_.get(), absl::StrCat("127.0.0.1:", port)).ok());
      EXPECT_FALSE(admission.check_in_loop(accepted_.get(), absl::StrCat("[::1]:", port)).ok());
    }
    clock.advance(absl::Minutes(1));
  }
  EXPECT_EQ(captured_lines("the store refused a connection").size(), 4u);
}

}  // namespace
}  // namespace gradwire::store
