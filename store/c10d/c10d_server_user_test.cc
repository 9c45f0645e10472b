// A process of another user listens where a job expects the store that a program of PyTorch serves.

#include <arpa/inet.h>
#include <sys/socket.h>

#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/testing/other_user.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/store/c10d/c10d_client.h"
#include "gradwire/store/c10d/c10d_socket.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Listens at a free port of 127.0.0.1, and returns it.
std::string listen_at_port(const std::string&) {
  static Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), generic, size) != 0 || ::listen(listener.get(), 8) != 0) return "0";
  ::getsockname(listener.get(), generic, &size);
  return absl::StrCat(ntohs(address.sin_port));
}

TEST(C10dServerOfAnotherUser, GetsNothingFromAClient) {
  GRADWIRE_NEEDS("root", OtherUser::available());
  OtherUser other(&listen_at_port);
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(other.ask(), &port));
  ASSERT_NE(port, 0);
  const C10dTarget target{.endpoint = {"127.0.0.1", port}};
  Clock& clock = Clock::system();
  const absl::Time deadline = clock.now() + absl::Seconds(60);
  C10dSocket::Server server;
  const absl::Status status = C10dSocket::open(target, clock, deadline, server).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr(absl::StrCat(OtherUser::kUser)), HasSubstr("allowed_users")));
  EXPECT_FALSE(C10dClient::find_server(target, clock, deadline).has_value());
  // Also for a client whose server was another one before.
  C10dClient client({.target = target, .name = "TcpStore"}, clock);
  EXPECT_TRUE(absl::IsPermissionDenied(client.join(deadline)));
}

}  // namespace
}  // namespace gradwire::store
