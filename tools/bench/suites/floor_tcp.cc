#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/tools/bench/suites/case_timing.h"
#include "gradwire/tools/bench/suites/floors.h"

namespace gradwire::bench {
namespace {

// Throws std::runtime_error with the description of errno.
[[noreturn]] void fail(const char* what) {
  throw std::runtime_error(absl::StrCat(what, ": ", std::strerror(errno)));
}

constexpr std::size_t kBytes = 8;
constexpr int kPollsBeforeYield = 20;
// The first byte of a message: whether the receiver blocks or spins until the next message.
constexpr char kBlock = 'b';
constexpr char kSpin = 's';

// Receives a message. Returns false at the end of the stream and on an error.
bool receive(int fd, char (&message)[kBytes], bool spin) {
  int polls = 0;
  std::size_t got = 0;
  while (got < kBytes) {
    const ssize_t n = recv(fd, message + got, kBytes - got, spin ? MSG_DONTWAIT : 0);
    if (n > 0) {
      got += static_cast<std::size_t>(n);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      return false;
    } else if (++polls > kPollsBeforeYield) {
      // Yield: the other process may be waiting for this core.
      sched_yield();
    }
  }
  return true;
}

class TcpPingPong final : public BenchProcess {
 public:
  explicit TcpPingPong(bool spin) : spin_(spin) {}

  std::string listen(const Endpoint& endpoint) override {
    if (endpoint.rank != 0) return "";
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener, 1) != 0 ||
        getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      fail("cannot listen on 127.0.0.1");
    }
    // The thread ends with the process.
    std::thread([listener] {
      const int fd = accept(listener, nullptr, nullptr);
      const int one = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      char message[kBytes] = {kBlock};
      while (receive(fd, message, message[0] == kSpin) && send(fd, message, kBytes, MSG_NOSIGNAL) == kBytes) {
      }
    }).detach();
    return absl::StrCat(ntohs(address.sin_port));
  }

  void join(const Endpoint& endpoint) override {
    if (endpoint.rank == 0) return;
    int port = 0;
    (void)absl::SimpleAtoi(endpoint.addresses.at(0), &port);
    sockaddr_in address{.sin_family = AF_INET,
                        .sin_port = htons(static_cast<uint16_t>(port)),
                        .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd_ < 0 || connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      fail("cannot connect to 127.0.0.1");
    }
    const int one = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }

  Measurement run(const Task& task) override {
    const Timing timing = timing_of(task);
    const bool cold = timing.idle_us > 0;
    const auto nothing = [](int64_t) {};
    Measurement result = measure(
        timing, nothing, [&](int64_t) { ping(spin_ && !cold ? kSpin : kBlock); }, nothing);
    // The last message makes the server block until the next round, instead of spinning.
    ping(kBlock);
    return result;
  }

 private:
  void ping(char kind) const {
    char message[kBytes] = {kind};
    if (send(fd_, message, kBytes, MSG_NOSIGNAL) != kBytes || !receive(fd_, message, kind == kSpin)) {
      fail("ping over tcp failed");
    }
  }

  const bool spin_;
  int fd_ = -1;
};

}  // namespace

std::unique_ptr<BenchProcess> make_floor_tcp() { return std::make_unique<TcpPingPong>(false); }
std::unique_ptr<BenchProcess> make_floor_tcp_spin() { return std::make_unique<TcpPingPong>(true); }

}  // namespace gradwire::bench
