#include "gradwire/tools/bench/security/attacks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/link/handshake.h"
#include "gradwire/security/token/record.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gradwire/transport/tcp/wire/preface.h"

namespace gradwire::bench {
namespace {

constexpr std::size_t kSlowSockets = 512;
constexpr int kMuteConnections = 4;

// Descriptors that the rest of the process needs.
constexpr rlim_t kReserved = 200;
// Sockets of one address use different ports until all are used up, also those that were closed a minute ago.
constexpr uint32_t kAddresses = 200;

int port_of(const std::string& address) {
  int port = 0;
  const std::vector<std::string> parts = absl::StrSplit(address, ':');
  if (!absl::SimpleAtoi(parts.back(), &port)) throw std::runtime_error("no port in " + address);
  return port;
}

sockaddr_in loopback(uint32_t last, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(0x7f000000 | last);
  return address;
}

// A socket that connects from the address 127.0.0.`from`. Not valid if that fails at once.
Descriptor connect_from(uint32_t from, int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return socket;
  const int one = 1;
  ::setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
  const sockaddr_in source = loopback(from, 0);
  const sockaddr_in target = loopback(1, port);
  const bool connecting =
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&source), sizeof(source)) == 0 &&
      (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&target), sizeof(target)) == 0 ||
       errno == EINPROGRESS);
  return connecting ? std::move(socket) : Descriptor();
}

rlim_t raise_descriptors() {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

uint32_t next_address() {
  static std::atomic<uint32_t> last{0};
  return 2 + last.fetch_add(1) % kAddresses;
}

// Counts the units of an attack, and spreads them over its time.
class Pace {
 public:
  explicit Pace(Attack& attack) : attack_(attack) {}

  // How many units are due now, at most `most`.
  int due(int most) const {
    if (!limited()) return most;
    const double seconds = absl::ToDoubleSeconds(absl::Now() - begin_);
    const auto due = static_cast<int64_t>(static_cast<double>(attack_.rate) * seconds) - attack_.count;
    return static_cast<int>(std::clamp<int64_t>(due, 0, most));
  }
  void on_done() { attack_.count.fetch_add(1, std::memory_order_relaxed); }
  bool limited() const { return attack_.rate != 0; }

 private:
  Attack& attack_;
  const absl::Time begin_ = absl::Now();
};

}  // namespace

void open_crowd(Attack& attack) {
  const int port = port_of(attack.address);
  Pace pace(attack);
  const std::size_t most = std::min<rlim_t>(10'000, raise_descriptors() - kReserved);
  Descriptor poller(::epoll_create1(EPOLL_CLOEXEC));
  std::vector<Descriptor> sockets;
  std::size_t open = 0;
  while (!attack.stop) {
    for (int burst = pace.due(64); burst > 0 && open < most; --burst) {
      Descriptor socket = connect_from(next_address(), port);
      if (!socket.valid()) break;
      epoll_event event = {};
      event.events = EPOLLIN | EPOLLRDHUP;
      event.data.fd = socket.get();
      ::epoll_ctl(poller.get(), EPOLL_CTL_ADD, socket.get(), &event);
      const auto index = static_cast<std::size_t>(socket.get());
      if (sockets.size() <= index) sockets.resize(index + 1);
      sockets[index] = std::move(socket);
      ++open;
      pace.on_done();
    }
    std::array<epoll_event, 256> events;
    const int ready = ::epoll_wait(poller.get(), events.data(), events.size(),
                                   open == most     ? 10
                                   : pace.limited() ? 1
                                                    : 0);
    for (int i = 0; i < ready; ++i) {
      sockets[static_cast<std::size_t>(events[static_cast<std::size_t>(i)].data.fd)].reset();
      --open;
    }
  }
}

void open_slowly(Attack& attack) {
  const int port = port_of(attack.address);
  raise_descriptors();
  struct Slow {
    Descriptor socket;
    std::size_t sent = 0;
  };
  std::vector<Slow> all(kSlowSockets);
  // A record that does not end soon, behind a whole preface.
  const std::string record = security::Record{.body = std::string(1000, 'x')}.encode();
  while (!attack.stop) {
    for (Slow& slow : all) {
      char byte = 0;
      if (slow.socket.valid() && ::recv(slow.socket.get(), &byte, 1, MSG_DONTWAIT) == 0) slow.socket.reset();
      if (!slow.socket.valid()) {
        slow.socket = connect_from(next_address(), port);
        if (!slow.socket.valid()) continue;
        pollfd writable = {slow.socket.get(), POLLOUT, 0};
        ::poll(&writable, 1, 1000);
        const std::string preface =
            transport::Preface{.proof = transport::Preface::Proof::kToken, .token = transport::random_token()}
                .encode();
        (void)::send(slow.socket.get(), preface.data(), preface.size(), MSG_NOSIGNAL);
        slow.sent = 0;
        attack.count.fetch_add(1, std::memory_order_relaxed);
      }
      if (::send(slow.socket.get(), &record[slow.sent++ % record.size()], 1, MSG_NOSIGNAL) != 1)
        slow.socket.reset();
    }
    for (int i = 0; i < 100 && !attack.stop; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

namespace {

// Receives the Hello of the worker, and then blocks the thread that reads, until the end.
class MuteListener final : public transport::ConnectionListener {
 public:
  explicit MuteListener(const std::atomic<bool>& stop) : stop_(stop) {}
  void on_message(transport::Connection&, transport::Message) override {
    ready_ = true;
    while (!stop_ && !ended_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  void on_closed(transport::Connection&, absl::Status) override { closed_ = true; }
  bool ready() const { return ready_; }
  bool closed() const { return closed_; }
  void end() { ended_ = true; }

 private:
  const std::atomic<bool>& stop_;
  std::atomic<bool> ready_{false};
  std::atomic<bool> closed_{false};
  std::atomic<bool> ended_{false};
};

// A connection with a loop of its own, which stops reading.
struct MuteConnection {
  std::unique_ptr<transport::Transport> transport;
  std::shared_ptr<MuteListener> listener;
  std::shared_ptr<transport::Connection> connection;

  void end() {
    if (listener != nullptr) listener->end();
    if (transport != nullptr) transport->shutdown();
    transport.reset();
  }
};

MuteConnection open_mute(const std::string& address, const MuteCaller& caller,
                         const std::atomic<bool>& stop) {
  static std::atomic<uint64_t> number{1'000'000};
  MuteConnection mute;
  transport::TcpOptions options;
  options.credentials = caller.credentials;
  options.purpose = "rpc";
  const rpc::Worker& self = caller.self.services().self();
  options.own_name = self.name;
  mute.transport = transport::make_tcp_transport(options);
  mute.listener = std::make_shared<MuteListener>(stop);
  auto connection = mute.transport->connect(address, mute.listener, absl::Seconds(5));
  if (!connection.ok()) return mute;
  mute.connection = *connection;
  proto::Envelope envelope;
  proto::Hello& hello = *envelope.mutable_hello();
  hello.set_protocol_version(rpc::kProtocolVersion);
  hello.set_id(self.id);
  hello.set_name(self.name);
  hello.set_incarnation(self.incarnation);
  hello.set_to_incarnation(caller.callee);
  hello.set_connection(++number);
  (void)mute.connection->send({envelope.SerializeAsString(), {}});
  return mute;
}

}  // namespace

void call_without_reading(Attack& attack, const MuteCaller& caller) {
  Pace pace(attack);
  std::vector<MuteConnection> all(kMuteConnections);
  proto::Envelope call;
  call.mutable_request()->set_function(caller.function);
  call.mutable_request()->set_signature(caller.signature);
  uint64_t id = 0;
  while (!attack.stop) {
    bool sent = false;
    for (MuteConnection& mute : all) {
      if (mute.connection == nullptr || mute.listener->closed()) {
        mute.end();
        mute = open_mute(attack.address, caller, attack.stop);
        continue;
      }
      // Bytes that the kernel does not take at once wait for a thread that does not come.
      if (!mute.listener->ready()) continue;
      if (mute.connection->queued_bytes() > 0) {
        mute.end();
        mute = MuteConnection();
        continue;
      }
      for (int burst = pace.due(16); burst > 0; --burst) {
        call.mutable_request()->set_call_id(++id);
        if (!mute.connection->send({call.SerializeAsString(), {}}).ok()) break;
        pace.on_done();
        sent = true;
      }
    }
    if (!sent) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (MuteConnection& mute : all) mute.end();
}

}  // namespace gradwire::bench
