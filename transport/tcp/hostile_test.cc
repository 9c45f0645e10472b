// Tests attacks by plain sockets on a listening tcp transport.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#include <chrono>
#include <thread>

#include "gradwire/base/process/shortage.h"
#include "gradwire/base/testing/limits.h"
#include "gradwire/transport/tcp/hostile/hostile_fixture.h"

namespace gradwire::transport {
namespace {

void overwrite(std::string& bytes, std::size_t offset, uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes[offset + i] = static_cast<char>(value >> (8 * i));
}

std::string hostile_frame(uint64_t header_bytes, uint32_t buffers) {
  std::string bytes = encode_frame_start(Message());
  overwrite(bytes, 8, header_bytes, 8);
  overwrite(bytes, 16, buffers, 4);
  return bytes;
}
TEST_F(HostileTcp, MalformedFrameClosesTheConnectionAndNamesPeerAndLimit) {
  std::string two_to_the_60 = hostile_frame(0, 1) + std::string(8, '\0');
  overwrite(two_to_the_60, 24, uint64_t{1} << 60, 8);
  std::string too_much = hostile_frame(0, 3) + std::string(24, '\0');
  for (int i = 0; i < 3; ++i) overwrite(too_much, 24 + 8 * i, uint64_t{1} << 29, 8);
  struct Case {
    std::string bytes;
    std::string expected;
  };
  const Case cases[] = {
      {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "cannot parse a frame"},
      {std::string(100'000, '\xff'), "cannot parse a frame"},
      {std::string(1, '\0'), "cannot parse a frame"},
      {hostile_frame(uint64_t{1} << 60, 0), "max_header_bytes = 67108864"},
      {two_to_the_60, "max_buffer_bytes = 536870912"},
      {too_much, "max_message_bytes = 1073741824"},
      {hostile_frame(0, 70'000), "max_buffers = 65536"},
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
  EXPECT_EQ(count_descriptors_down_to(before), before);
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

// The kernel reports the error of a socket once, to the write or the read that comes first. After that the
// other one sees the end of the stream.
TEST_F(HostileTcp, PeerThatDoesNotReadIsSaidToHaveBeenTooSlow) {
  for (const absl::string_view begun : {absl::string_view(), absl::string_view("GWf1")}) {
    const std::unique_ptr<Transport> server = make_tcp_transport(server_options());
    const auto listener = std::make_shared<RecordingListener>([](Connection& connection, const Message&) {
      Message large;
      large.buffers = {make_test_buffer(std::size_t{64} << 20, 1)};
      EXPECT_TRUE(connection.send(std::move(large)).ok());
    });
    address_ = *server->listen([&](const std::shared_ptr<Connection>&) { return listener; });
    const Descriptor socket = connect();
    write_all(socket, absl::StrCat(encode_frame_start(Message()), begun));
    const absl::Status reason = listener->wait_closed();
    EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(reason.message().find("did not answer or did not read"), std::string::npos) << reason;
    server->shutdown();
  }
}

TEST_F(HostileTcp, AMessageThatDripsByteByByteArrives) {
  Message message;
  message.header = "drip";
  message.buffers = {make_test_buffer(20, 7)};
  std::string bytes = encode_frame_start(message) + message.header +
                      std::string(static_cast<const char*>(message.buffers[0].data()), 20);
  Descriptor socket = connect();
  int one = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
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

TEST_F(HostileTcp, ConnectionsThatCloseEarlyLeaveNoDescriptors) {
  int before = count_descriptors();
  constexpr int kConnections = 200;
  for (int i = 0; i < kConnections; ++i) {
    Descriptor socket = connect();
    if (i % 3 == 0) write_all(socket, "garbage");
    if (i % 3 == 1) write_all(socket, hostile_frame(1'000, 5));
    if (i % 5 == 0) {
      linger reset = {1, 0};
      ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    }
    // Wait for each one: a connection that is reset before it is accepted is accepted nevertheless.
    listener(i);
  }
  for (int i = 0; i < kConnections; ++i) EXPECT_FALSE(listener(i)->wait_closed().ok());
  expect_still_serving(kConnections);
  EXPECT_EQ(count_descriptors_down_to(before), before);
}

TEST_F(HostileTcp, WithoutDescriptorsConnectionsWaitAndAreServedLater) {
  std::vector<Descriptor> sockets;
  // The sockets exist before descriptors run out. They connect while the server has no descriptor for its
  // end.
  for (int i = 0; i < 3; ++i) sockets.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit small = limit;
  small.rlim_cur = 3;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  auto addresses = resolve_addresses(address_);
  for (Descriptor& socket : sockets) {
    EXPECT_EQ(::connect(socket.get(), addresses->front().get(), addresses->front().length), 0);
    write_all(socket, Preface{.token = random_token()}.encode());
  }
  timespec cpu_before, cpu_after;
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu_before);
  // Long enough to distinguish a waiting loop from a spinning one.
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

// The server asks the kernel for the user of the client, for which it needs a descriptor.
TEST_F(HostileTcp, WithoutADescriptorTheUserOfAClientIsFoundLater) {
  server_->shutdown();
  TcpOptions of_this_host = server_options();
  of_this_host.credentials = nullptr;
  start(of_this_host);
  // The server waits for the preface of the first client. The second one shows that the first one has been
  // accepted, and later that the server has handled its preface.
  Descriptor socket = connect_silently();
  const Descriptor accepted = connect();
  listener(0);
  {
    const LimitScope limit(RLIMIT_NOFILE, no_free_descriptor());
    write_all(socket, Preface{.token = random_token()}.encode());
    write_all(accepted, std::string(1'000, 'x'));
    EXPECT_FALSE(listener(0)->wait_closed().ok());
  }
  // Without the retry the server would have refused the client.
  listener(1);
}

TEST_F(HostileTcp, ConnectingWithoutADescriptorNamesTheLimit) {
  auto client = make_tcp_transport(server_options());
  // The transport has what it needs itself.
  auto first = client->connect(address_, std::make_shared<RecordingListener>(), absl::Seconds(30));
  ASSERT_TRUE(first.ok());
  listener(0);
  auto failed = std::make_shared<RecordingListener>();
  {
    const LimitScope limit(RLIMIT_NOFILE, no_free_descriptor());
    ASSERT_TRUE(client->connect(address_, failed, absl::Seconds(30)).ok());
    const absl::Status reason = failed->wait_closed();
    EXPECT_TRUE(is_local_shortage(reason)) << reason;
    EXPECT_NE(reason.message().find("RLIMIT_NOFILE"), std::string::npos) << reason;
  }
  auto later = client->connect(address_, std::make_shared<RecordingListener>(), absl::Seconds(30));
  ASSERT_TRUE(later.ok());
  listener(1);
  client->shutdown();
}

TEST_F(HostileTcp, SocketWithoutAValidPrefaceIsClosedAndNotReported) {
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string(100, '\xff'),
        encode_frame_start(Message()), std::string("GWt1\x09") + std::string(19, '\0'),
        std::string("GWt1\x02\x30") + std::string(18, '\0'), std::string("GWt1\x01") + std::string(19, '\0'),
        std::string("GWt1\x02\x07") + std::string(18, '\0')}) {
    Descriptor socket = connect_silently();
    write_all(socket, bytes);
    EXPECT_TRUE(is_closed_by_server(socket));
  }
  // These sockets are still open when the server shuts down.
  Descriptor silent = connect_silently();
  Descriptor half = connect_silently();
  write_all(half, "GWt1");
  expect_still_serving(0);
  server_->shutdown();
  EXPECT_TRUE(is_closed_by_server(silent));
  EXPECT_TRUE(is_closed_by_server(half));
  MutexLock lock(mutex_);
  EXPECT_EQ(listeners_.size(), 1);
}

TEST_F(HostileTcp, TokenOfAnotherConnectionIsRefused) {
  const std::string preface = Preface{.token = random_token()}.encode();
  Descriptor first = connect_silently();
  write_all(first, preface);
  listener(0);
  Descriptor second = connect_silently();
  write_all(second, preface);
  EXPECT_TRUE(is_closed_by_server(second));
  write_all(first, encode_frame_start(Message()));
  EXPECT_EQ(listener(0)->wait_for_messages(1).size(), 1);
}

}  // namespace
}  // namespace gradwire::transport
