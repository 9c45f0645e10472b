#include "gradwire/tools/bench/run/split_network.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gradwire/base/testing/test_needs.h"
#include "gtest/gtest.h"

namespace gradwire::bench {
namespace {

sockaddr_in address_of(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

// Enters the namespace `fd`, writes its port to `port_fd`, and sends back every datagram until it is killed.
[[noreturn]] void echo_in(int fd, int port_fd) {
  if (setns(fd, CLONE_NEWNET) != 0) _exit(1);
  const int socket = ::socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in address = address_of(SplitNetwork::right_address(), 0);
  socklen_t size = sizeof address;
  if (bind(socket, reinterpret_cast<sockaddr*>(&address), size) != 0) _exit(1);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  const int port = ntohs(address.sin_port);
  if (write(port_fd, &port, sizeof port) != sizeof port) _exit(1);
  for (;;) {
    char byte = 0;
    sockaddr_in from{};
    size = sizeof from;
    if (recvfrom(socket, &byte, 1, 0, reinterpret_cast<sockaddr*>(&from), &size) == 1) {
      sendto(socket, &byte, 1, 0, reinterpret_cast<sockaddr*>(&from), size);
    }
  }
}

bool is_answered(int socket, int wait_ms) {
  if (send(socket, "?", 1, 0) != 1) return false;
  pollfd entry{.fd = socket, .events = POLLIN, .revents = 0};
  char byte = 0;
  return poll(&entry, 1, wait_ms) == 1 && recv(socket, &byte, 1, 0) == 1;
}

TEST(SplitNetwork, CarriesUntilTheLinkIsCut) {
  const auto network = SplitNetwork::make();
  GRADWIRE_NEEDS("network_namespaces", network.status());
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t right = fork();
  if (right == 0) echo_in((*network)->right_fd(), ends[1]);
  int port = 0;
  ASSERT_EQ(read(ends[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  ASSERT_EQ(setns((*network)->left_fd(), CLONE_NEWNET), 0);
  const int socket = ::socket(AF_INET, SOCK_DGRAM, 0);
  const sockaddr_in address = address_of(SplitNetwork::right_address(), port);
  ASSERT_EQ(connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);

  EXPECT_TRUE(is_answered(socket, 10'000));
  const absl::Status cut = cut_link(right);
  EXPECT_TRUE(cut.ok()) << cut;
  EXPECT_FALSE(is_answered(socket, 200));

  kill(right, SIGKILL);
  waitpid(right, nullptr, 0);
  close(socket);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace gradwire::bench
