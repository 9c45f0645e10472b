#include "gradwire/base/free_port.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <set>

namespace gradwire {
namespace {

class Socket {
 public:
  Socket() : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Socket() { ::close(descriptor_); }

  void reuse_address() {
    const int on = 1;
    ASSERT_EQ(::setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
  }

  // Each returns 0 or an errno.
  int bind(int port) { return call(::bind, port); }
  int connect(int port) { return call(::connect, port); }
  int listen() { return ::listen(descriptor_, 1) == 0 ? 0 : errno; }

 private:
  template <typename Call>
  int call(Call* function, int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return function(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0
                                                                                                    : errno;
  }

  const int descriptor_;
};

TEST(FreePort, ServersListenOnItInTurnAndNobodyListensInBetween) {
  const int port = free_port();
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(Socket().connect(port), ECONNREFUSED);
    Socket server;
    server.reuse_address();
    ASSERT_EQ(server.bind(port), 0);
    ASSERT_EQ(server.listen(), 0);
    EXPECT_EQ(Socket().connect(port), 0);
    Socket second;
    second.reuse_address();
    EXPECT_EQ(second.bind(port), EADDRINUSE);
  }
}

TEST(FreePort, IsGivenBackAtItsEnd) {
  int number = 0;
  {
    FreePort port;
    number = port.number();
    EXPECT_EQ(Socket().bind(number), EADDRINUSE);
  }
  EXPECT_EQ(Socket().bind(number), 0);
}

TEST(FreePort, NobodyElseGetsIt) {
  const int port = free_port();
  EXPECT_EQ(Socket().bind(port), EADDRINUSE);
  std::set<int> ports = {port};
  // A child reserves its own, and ends only when this process has reserved more: none of them are equal.
  int from_child[2], to_child[2];
  ASSERT_EQ(::pipe2(from_child, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(to_child, O_CLOEXEC), 0);
  constexpr int kEach = 200;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int theirs[kEach];
    for (int& each : theirs) each = free_port();
    char go;
    const bool good =
        ::write(from_child[1], theirs, sizeof(theirs)) == sizeof(theirs) && ::read(to_child[0], &go, 1) == 1;
    ::_exit(good ? 0 : 1);
  }
  for (int i = 0; i < kEach; ++i) EXPECT_TRUE(ports.insert(free_port()).second);
  int theirs[kEach];
  ASSERT_EQ(::read(from_child[0], theirs, sizeof(theirs)), static_cast<ssize_t>(sizeof(theirs)));
  for (const int each : theirs) EXPECT_TRUE(ports.insert(each).second) << each;
  EXPECT_EQ(ports.count(0), 0u);
  ASSERT_EQ(::write(to_child[1], "g", 1), 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace gradwire
