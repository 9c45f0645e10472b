// What raw sockets can do to a listening tcp transport.

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "gtest/gtest.h"
#include "transport/process_counts.h"
#include "transport/recording_listener.h"
#include "transport/tcp/address.h"
#include "transport/descriptor.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/tcp_transport.h"

namespace gradwire::transport {
namespace {

void put(std::string& bytes, std::size_t offset, uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes[offset + i] = static_cast<char>(value >> (8 * i));
}

std::string frame_announcing(uint64_t header_bytes, uint32_t buffers) {
  std::string bytes = encode_frame_start(Message());
  put(bytes, 8, header_bytes, 8);
  put(bytes, 16, buffers, 4);
  return bytes;
}

class HostileTcp : public testing::Test {
 protected:
  void SetUp() override {
    TcpOptions options;
    options.bind_address = "127.0.0.1";
    options.limits.max_message_bytes = uint64_t{1} << 30;
    options.limits.max_buffer_bytes = uint64_t{1} << 29;
    server_ = make_tcp_transport(options);
    auto listening = server_->listen([this](const std::shared_ptr<Connection>& connection) {
      MutexLock lock(mutex_);
      listeners_.push_back(std::make_shared<RecordingListener>());
      changed_.notify_all();
      return listeners_.back();
    });
    ASSERT_TRUE(listening.ok()) << listening.status();
    address_ = *listening;
  }

  void TearDown() override { server_->shutdown(); }

  // A connected plain socket; `own_address` is what the server knows it by.
  Descriptor connect(std::string* own_address = nullptr) {
    auto addresses = resolve_addresses(address_);
    EXPECT_TRUE(addresses.ok());
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), addresses->front().get(), addresses->front().length), 0)
        << std::strerror(errno);
    if (own_address != nullptr) {
      SocketAddress own;
      own.length = sizeof(own.storage);
      ::getsockname(socket.get(), own.get(), &own.length);
      *own_address = to_string(own);
    }
    return socket;
  }

  std::shared_ptr<RecordingListener> listener(std::size_t index) {
    absl::Time deadline = Clock::system().now() + kTestPatience;
    MutexLock lock(mutex_);
    while (listeners_.size() <= index && Clock::system().now() < deadline) {
      Clock::system().wait_until(mutex_, changed_, deadline);
    }
    return listeners_.at(index);
  }

  static void write_all(const Descriptor& socket, absl::string_view bytes) {
    while (!bytes.empty()) {
      ssize_t written = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (written <= 0) return;
      bytes.remove_prefix(written);
    }
  }

  // Whether the server closes its end, within the patience of a test.
  static bool is_closed_by_server(const Descriptor& socket) {
    timeval patience = {60, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    char byte;
    ssize_t got = ::recv(socket.get(), &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }

  void expect_still_serving(std::size_t index) {
    auto client = make_tcp_transport();
    auto client_listener = std::make_shared<RecordingListener>();
    auto connection = client->connect(address_, client_listener, absl::Seconds(30));
    ASSERT_TRUE(connection.ok());
    Message message;
    message.header = "hello";
    ASSERT_TRUE((*connection)->send(std::move(message)).ok());
    EXPECT_EQ(listener(index)->wait_for_messages(1).size(), 1);
    client->shutdown();
    EXPECT_EQ(listener(index)->wait_closed().code(), absl::StatusCode::kUnavailable);
  }

  std::unique_ptr<Transport> server_;
  std::string address_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<RecordingListener>> listeners_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(HostileTcp, WhatIsNoFrameEndsTheConnectionAndNamesPeerAndLimit) {
  std::string two_to_the_60 = frame_announcing(0, 1) + std::string(8, '\0');
  put(two_to_the_60, 24, uint64_t{1} << 60, 8);
  std::string too_much = frame_announcing(0, 3) + std::string(24, '\0');
  for (int i = 0; i < 3; ++i) put(too_much, 24 + 8 * i, uint64_t{1} << 29, 8);
  struct Case {
    std::string bytes;
    std::string expected;
  };
  const Case cases[] = {
      {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "no frame"},
      {std::string(100'000, '\xff'), "no frame"},
      {std::string(1, '\0'), "no frame"},
      {frame_announcing(uint64_t{1} << 60, 0), "max_header_bytes = 67108864"},
      {two_to_the_60, "max_buffer_bytes = 536870912"},
      {too_much, "max_message_bytes = 1073741824"},
      {frame_announcing(0, 70'000), "max_buffers = 65536"},
  };
  int before = count_descriptors();
  std::size_t index = 0;
  for (const Case& c : cases) {
    std::string own_address;
    Descriptor socket = connect(&own_address);
    write_all(socket, c.bytes);
    absl::Status reason = listener(index++)->wait_closed();
    EXPECT_EQ(reason.code(), absl::StatusCode::kInvalidArgument) << reason;
    EXPECT_NE(reason.message().find(c.expected), std::string::npos) << reason;
    EXPECT_NE(reason.message().find(own_address), std::string::npos) << reason;
    EXPECT_TRUE(is_closed_by_server(socket));
  }
  expect_still_serving(index);
  EXPECT_EQ(count_descriptors(), before);
}

TEST_F(HostileTcp, ATruncatedFrameIsUnavailable) {
  Message message;
  message.header = "a header";
  message.buffers = {make_test_buffer(10'000, 1)};
  std::string bytes = encode_frame_start(message) + message.header + std::string(5'000, 'x');
  std::size_t index = 0;
  for (std::size_t size :
       {std::size_t{3}, std::size_t{23}, std::size_t{24}, std::size_t{30}, std::size_t{36}, bytes.size()}) {
    Descriptor socket = connect();
    write_all(socket, absl::string_view(bytes).substr(0, size));
    socket.reset();
    absl::Status reason = listener(index)->wait_closed();
    EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(reason.message().find("middle of a message"), std::string::npos) << reason;
    EXPECT_EQ(listener(index++)->message_count(), 0);
  }
  expect_still_serving(index);
}

TEST_F(HostileTcp, AMessageThatDripsByteByByteArrives) {
  Message message;
  message.header = "drip";
  message.buffers = {make_test_buffer(20, 7)};
  std::string bytes = encode_frame_start(message) + message.header +
                      std::string(static_cast<const char*>(message.buffers[0].data()), 20);
  Descriptor socket = connect();
  int one = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, 1 /* TCP_NODELAY */, &one, sizeof(one));
  for (char byte : bytes + bytes) write_all(socket, absl::string_view(&byte, 1));
  auto received = listener(0)->wait_for_messages(2);
  ASSERT_EQ(received.size(), 2);
  EXPECT_EQ(received[1].header, "drip");
  EXPECT_TRUE(is_test_buffer(received[1].buffers[0], 20, 7));
}

TEST_F(HostileTcp, GoodMessagesBeforeABadOneArrive) {
  Message message;
  message.header = "good";
  Descriptor socket = connect();
  write_all(socket, encode_frame_start(message) + "good" + encode_frame_start(message) + "goodBAD!");
  EXPECT_EQ(listener(0)->wait_closed().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(listener(0)->message_count(), 2);
}

TEST_F(HostileTcp, ManyConnectionsThatComeAndGoLeaveNothing) {
  int before = count_descriptors();
  constexpr int kConnections = 200;
  for (int i = 0; i < kConnections; ++i) {
    Descriptor socket = connect();
    if (i % 3 == 0) write_all(socket, "garbage");
    if (i % 3 == 1) write_all(socket, frame_announcing(1'000, 5));
    if (i % 5 == 0) {
      linger reset = {1, 0};
      ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    }
    // A connection that is reset before it is accepted is accepted all the same.
    listener(i);
  }
  for (int i = 0; i < kConnections; ++i) EXPECT_FALSE(listener(i)->wait_closed().ok());
  expect_still_serving(kConnections);
  EXPECT_EQ(count_descriptors(), before);
}

TEST_F(HostileTcp, WithoutDescriptorsConnectionsWaitAndAreServedLater) {
  std::vector<Descriptor> sockets;
  // The sockets exist before descriptors run out, and connect when there is none for the other end.
  for (int i = 0; i < 3; ++i) sockets.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit small = limit;
  small.rlim_cur = 3;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  auto addresses = resolve_addresses(address_);
  for (Descriptor& socket : sockets) {
    EXPECT_EQ(::connect(socket.get(), addresses->front().get(), addresses->front().length), 0);
  }
  timespec cpu_before, cpu_after;
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu_before);
  // Long enough to tell a loop that waits from one that spins.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu_after);
  {
    MutexLock lock(mutex_);
    EXPECT_EQ(listeners_.size(), 0);
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  double cpu = static_cast<double>(cpu_after.tv_sec - cpu_before.tv_sec) +
               1e-9 * static_cast<double>(cpu_after.tv_nsec - cpu_before.tv_nsec);
  EXPECT_LT(cpu, 0.15);
  for (int i = 0; i < 3; ++i) listener(i);
}

// An address where nothing answers: a listening socket whose backlog is full.
TEST(TcpConnect, WithoutAnAnswerEndsInTime) {
  Descriptor deaf(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress address = resolve_bind_addresses("127.0.0.1", 0)->front();
  ASSERT_EQ(::bind(deaf.get(), address.get(), address.length), 0);
  ASSERT_EQ(::listen(deaf.get(), 0), 0);
  ASSERT_EQ(::getsockname(deaf.get(), address.get(), &address.length), 0);
  std::vector<Descriptor> fillers;
  for (int i = 0; i < 4; ++i) {
    fillers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    ::connect(fillers.back().get(), address.get(), address.length);
  }
  auto client = make_tcp_transport();
  auto listener = std::make_shared<RecordingListener>();
  absl::Time before = Clock::system().now();
  auto connection = client->connect(to_string(address), listener, absl::Milliseconds(200));
  ASSERT_TRUE(connection.ok());
  ASSERT_TRUE((*connection)->send(Message()).ok());
  absl::Status reason = listener->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(reason.message().find("no answer in time"), std::string::npos) << reason;
  EXPECT_GE(Clock::system().now() - before, absl::Milliseconds(190));
  client->shutdown();
}

TEST(TcpConnect, TheNextCandidateIsTriedWhenOneRefuses) {
  TcpOptions options;
  options.bind_address = "127.0.0.1";
  auto server = make_tcp_transport(options);
  auto server_listener = std::make_shared<RecordingListener>();
  auto listening = server->listen([&](const std::shared_ptr<Connection>&) { return server_listener; });
  ASSERT_TRUE(listening.ok());
  std::string nobody;
  {
    auto other = make_tcp_transport(options);
    nobody = *other->listen([](const std::shared_ptr<Connection>&) { return nullptr; });
  }
  auto client = make_tcp_transport();
  auto listener = std::make_shared<RecordingListener>();
  auto connection = client->connect(nobody + "," + *listening, listener, absl::Seconds(30));
  ASSERT_TRUE(connection.ok());
  ASSERT_TRUE((*connection)->send(Message()).ok());
  EXPECT_EQ(server_listener->wait_for_messages(1).size(), 1);
}

TEST(TcpListen, APortInUseIsUnavailableAndNamed) {
  TcpOptions options;
  options.bind_address = "127.0.0.1";
  auto first = make_tcp_transport(options);
  auto refuse = [](const std::shared_ptr<Connection>&) { return nullptr; };
  std::string address = *first->listen(refuse);
  options.port = std::stoi(address.substr(address.rfind(':') + 1));
  auto second = make_tcp_transport(options);
  absl::Status status = second->listen(refuse).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find(address), std::string::npos) << status;
  EXPECT_NE(status.message().find("in use"), std::string::npos) << status;
}

TEST(TcpSend, AMessageOverTheLimitsIsRefused) {
  TcpOptions options;
  options.limits.max_header_bytes = 10;
  auto transport = make_tcp_transport(options);
  auto listener = std::make_shared<RecordingListener>();
  std::string address = *transport->listen([&](const std::shared_ptr<Connection>&) { return listener; });
  auto connection = transport->connect(address, std::make_shared<RecordingListener>(), absl::Seconds(30));
  ASSERT_TRUE(connection.ok());
  Message message;
  message.header = "more than ten bytes";
  absl::Status status = (*connection)->send(std::move(message)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("max_header_bytes"), std::string::npos) << status;
  ASSERT_TRUE((*connection)->send(Message()).ok());
  EXPECT_EQ(listener->wait_for_messages(1).size(), 1);
}

}  // namespace
}  // namespace gradwire::transport
