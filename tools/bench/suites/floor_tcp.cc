#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/tools/bench/run/pattern.h"
#include "gradwire/tools/bench/suites/case_timing.h"
#include "gradwire/tools/bench/suites/floors.h"

namespace gradwire::bench {
namespace {

// Throws std::runtime_error with the description of errno.
[[noreturn]] void fail(const char* what) {
  throw std::runtime_error(absl::StrCat(what, ": ", std::strerror(errno)));
}

constexpr int kPollsBeforeYield = 20;
constexpr uint64_t kMaxPayload = uint64_t{1} << 30;

// How the receiver waits for the next message.
enum class Wait : uint8_t { kBlock, kSpin };

// Eight bytes that begin a message. The payload follows.
struct Head {
  Wait next = Wait::kBlock;
  uint32_t payload = 0;
};
static_assert(sizeof(Head) == 8);

// Return false at the end of the stream and on an error.
bool receive(int fd, void* data, std::size_t bytes, Wait wait = Wait::kBlock) {
  int polls = 0;
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t n =
        recv(fd, static_cast<char*>(data) + got, bytes - got, wait == Wait::kSpin ? MSG_DONTWAIT : 0);
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

bool send(int fd, const void* data, std::size_t bytes) {
  std::size_t sent = 0;
  while (sent < bytes) {
    const ssize_t n = ::send(fd, static_cast<const char*>(data) + sent, bytes - sent, MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
    } else if (n == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

// Returns each message to its sender until the end of the stream.
void serve(int fd) {
  Head head;
  std::vector<char> payload;
  while (receive(fd, &head, sizeof head, head.next)) {
    if (payload.size() < head.payload) payload.resize(head.payload);
    if (!receive(fd, payload.data(), head.payload) || !send(fd, &head, sizeof head) ||
        !send(fd, payload.data(), head.payload)) {
      return;
    }
  }
}

class TcpPingPong final : public BenchProcess {
 public:
  explicit TcpPingPong(bool spin) : spin_(spin) {}
  TcpPingPong(const TcpPingPong&) = delete;
  TcpPingPong& operator=(const TcpPingPong&) = delete;
  ~TcpPingPong() override {
    if (fd_ >= 0) close(fd_);
  }

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
    // The thread ends with the process, or when the other member has closed its connection.
    std::thread([listener] {
      const int fd = accept(listener, nullptr, nullptr);
      const int one = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      serve(fd);
      close(fd);
      close(listener);
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
    const CaseName name = parse_case(task.case_name);
    const Timing timing = timing_of(task);
    if (name.bytes > 0) return run_echo(static_cast<std::size_t>(name.bytes), timing);
    const Wait wait = spin_ && timing.idle_us == 0 ? Wait::kSpin : Wait::kBlock;
    const auto nothing = [](int64_t) {};
    Measurement result = measure(
        timing, nothing, [&](int64_t) { exchange({wait}, nullptr); }, nothing);
    // The last message makes the server block until the next round, instead of spinning.
    exchange({Wait::kBlock}, nullptr);
    return result;
  }

 private:
  Measurement run_echo(std::size_t bytes, const Timing& timing) {
    if (bytes > kMaxPayload) throw std::invalid_argument("floor_tcp sends at most 1 GiB");
    std::vector<char> data(bytes);
    const Head head = {Wait::kBlock, static_cast<uint32_t>(bytes)};
    return measure(
        timing, [&](int64_t i) { fill_pattern(data.data(), bytes, static_cast<uint64_t>(i)); },
        [&](int64_t) { exchange(head, data.data()); },
        [&](int64_t i) { check_pattern(data.data(), bytes, static_cast<uint64_t>(i)); });
  }

  // Sends a message, and replaces its payload with that of the answer.
  void exchange(Head head, char* payload) const {
    if (!send(fd_, &head, sizeof head) || !send(fd_, payload, head.payload) ||
        !receive(fd_, &head, sizeof head, head.next) || !receive(fd_, payload, head.payload)) {
      fail("an exchange over tcp failed");
    }
  }

  const bool spin_;
  int fd_ = -1;
};

}  // namespace

std::unique_ptr<BenchProcess> make_floor_tcp() { return std::make_unique<TcpPingPong>(false); }
std::unique_ptr<BenchProcess> make_floor_tcp_spin() { return std::make_unique<TcpPingPong>(true); }

}  // namespace gradwire::bench
