// Tests attacks on a connecting tcp transport by a plain listening socket.

#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <random>
#include <thread>
#include <utility>

#include "gradwire/transport/tcp/hostile/hostile_fixture.h"
#include "gradwire/transport/tcp/wire/stripe_control.h"

namespace gradwire::transport {
namespace {

constexpr int kAcceptedStripes = 2;
constexpr std::size_t kMessageBytes = 200'000;

// A transport that connects to a plain socket of the test. It also has a connection to a well-behaved server,
// which the attacks must not affect.
class HostileAcceptor : public HostileTcp {
 protected:
  void SetUp() override {
    HostileTcp::SetUp();
    // This timeout closes a connection whose reader does not read for this time, which must not happen when
    // the machine stalls.
    client_ = make_tcp_transport(client_options(absl::Seconds(10)));
    auto honest = client_->connect(address_, honest_listener_, absl::Seconds(60));
    ASSERT_TRUE(honest.ok()) << honest.status();
    honest_ = *honest;

    listening_ = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    SocketAddress any;
    any.storage.ss_family = AF_INET;
    any.length = sizeof(sockaddr_in);
    reinterpret_cast<sockaddr_in*>(&any.storage)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::bind(listening_.get(), any.get(), any.length), 0);
    ASSERT_EQ(::listen(listening_.get(), 16), 0);
    SocketAddress bound;
    bound.length = sizeof(bound.storage);
    ASSERT_EQ(::getsockname(listening_.get(), bound.get(), &bound.length), 0);
    hostile_address_ = to_string(bound);
  }

  void TearDown() override {
    client_->shutdown();
    HostileTcp::TearDown();
  }

  static TcpOptions client_options(absl::Duration user_timeout) {
    TcpOptions options;
    options.limits.max_message_bytes = uint64_t{1} << 30;
    options.limits.max_buffer_bytes = uint64_t{1} << 29;
    options.stripes = kAcceptedStripes;
    options.stripe_from_bytes = kMinStripedBytes;
    options.user_timeout = user_timeout;
    return options;
  }

  // Connects the transport to the plain socket; socket_ is then the test's end of the connection.
  void open_connection() {
    stripes_[0].reset();
    stripes_[1].reset();
    at_client_ = std::make_shared<RecordingListener>();
    auto connection = client_->connect(hostile_address_, at_client_, absl::Seconds(60));
    ASSERT_TRUE(connection.ok()) << connection.status();
    from_client_ = *connection;
    socket_ = accept_one();
    const absl::StatusOr<Preface> preface = read_preface(socket_);
    ASSERT_TRUE(preface.ok()) << preface.status();
    ASSERT_EQ(preface->kind, Preface::Kind::kConnection);
    token_ = preface->token;
  }

  Descriptor accept_one() {
    Descriptor accepted(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(accepted.valid());
    timeval timeout = {60, 0};
    ::setsockopt(accepted.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    return accepted;
  }

  static absl::StatusOr<Preface> read_preface(const Descriptor& socket) {
    char bytes[Preface::kBytes] = {};
    EXPECT_EQ(::recv(socket.get(), bytes, sizeof(bytes), MSG_WAITALL), sizeof(bytes));
    return Preface::parse(absl::string_view(bytes, sizeof(bytes)));
  }

  // Requests stripes and accepts them, without sending "ready".
  void accept_stripes() {
    send_control(StripeControl::kWant);
    for (int i = 0; i < kAcceptedStripes; ++i) {
      Descriptor stripe = accept_one();
      const absl::StatusOr<Preface> preface = read_preface(stripe);
      ASSERT_TRUE(preface.ok()) << preface.status();
      ASSERT_EQ(preface->kind, Preface::Kind::kStripe);
      ASSERT_EQ(preface->token, token_);
      stripes_[preface->stripe - 1] = std::move(stripe);
    }
  }

  void send_control(StripeControl control) {
    const char byte = static_cast<char>(control);
    send_bytes(encode_control_frame(absl::string_view(&byte, 1)));
  }

  void send_bytes(const std::string& bytes) { write_all(socket_, bytes); }

  // Waits until the transport has read `bytes` bytes of this connection, or has closed it.
  void await_arrived(uint64_t bytes) {
    const absl::Time deadline = Clock::system().now() + kTestTimeout;
    while (from_client_->bytes_arrived() < bytes && at_client_->closed_count() == 0 &&
           Clock::system().now() < deadline) {
      std::this_thread::yield();
    }
  }

  static Message striped_message() {
    Message message;
    message.header = "striped";
    message.buffers = {make_test_buffer(kMessageBytes, 3)};
    return message;
  }
  // The bytes of the message on the connection (0) or on a stripe.
  static std::string bytes_on(int lane) {
    const Message message = striped_message();
    const StripeShare share = stripe_share(kMessageBytes, kAcceptedStripes, lane);
    std::string bytes(static_cast<const char*>(message.buffers[0].data()) + share.offset, share.size);
    if (lane == 0)
      bytes = encode_frame_start(message, Striping{.stripes = kAcceptedStripes}) + message.header + bytes;
    return bytes;
  }

  void expect_closed(absl::StatusCode code, const std::string& text) {
    const absl::Status reason = at_client_->wait_closed();
    EXPECT_EQ(reason.code(), code) << reason;
    EXPECT_NE(reason.message().find(text), std::string::npos) << reason;
    EXPECT_NE(reason.message().find(hostile_address_), std::string::npos) << reason;
    EXPECT_TRUE(is_closed_by_server(socket_));
  }

  // Checks that the client's other connection still works, and that no message was delivered on this one.
  void expect_unharmed() {
    EXPECT_EQ(at_client_->message_count(), 0);
    expect_honest_connection_works();
  }

  void expect_honest_connection_works() {
    Message message;
    message.header = "honest";
    ASSERT_TRUE(honest_->send(std::move(message)).ok());
    ++honest_messages_;
    EXPECT_EQ(listener(0)->wait_for_messages(honest_messages_).size(), honest_messages_);
    EXPECT_EQ(honest_listener_->closed_count(), 0);
  }

  std::unique_ptr<Transport> client_;
  std::shared_ptr<RecordingListener> honest_listener_ = std::make_shared<RecordingListener>();
  std::shared_ptr<Connection> honest_;
  std::size_t honest_messages_ = 0;

  std::string hostile_address_;
  Descriptor listening_;
  std::shared_ptr<RecordingListener> at_client_;
  std::shared_ptr<Connection> from_client_;
  Preface::Token token_;
  Descriptor socket_;
  Descriptor stripes_[kAcceptedStripes];
};

TEST_F(HostileAcceptor, MalformedFrameClosesTheConnectionAndNamesPeerAndLimit) {
  auto announcing = [](uint64_t header_bytes, uint32_t buffers) {
    std::string bytes = encode_frame_start(Message());
    for (int i = 0; i < 8; ++i) bytes[8 + i] = static_cast<char>(header_bytes >> (8 * i));
    for (int i = 0; i < 4; ++i) bytes[16 + i] = static_cast<char>(buffers >> (8 * i));
    return bytes;
  };
  const std::pair<std::string, std::string> cases[] = {
      {"HTTP/1.1 400 Bad Request\r\n\r\n", "cannot parse a frame"},
      {std::string(100'000, '\xff'), "cannot parse a frame"},
      {std::string(1, '\0'), "cannot parse a frame"},
      // An acceptor sends no preface.
      {Preface{.token = random_token()}.encode(), "cannot parse a frame"},
      {announcing(uint64_t{1} << 60, 0), "max_header_bytes = 67108864"},
      {announcing(0, 70'000), "max_buffers = 65536"},
      {announcing(0, 1) + std::string(7, '\0') + '\x7f', "max_buffer_bytes = 536870912"},
      {bytes_on(0), "uses 2 stripes"},
  };
  for (const auto& [bytes, expected] : cases) {
    SCOPED_TRACE(expected);
    ASSERT_NO_FATAL_FAILURE(open_connection());
    send_bytes(bytes);
    expect_closed(absl::StatusCode::kInvalidArgument, expected);
    expect_unharmed();
  }
}

TEST_F(HostileAcceptor, ATruncatedFrameIsUnavailable) {
  Message message;
  message.header = "a header";
  message.buffers = {make_test_buffer(10'000, 1)};
  const std::string bytes = encode_frame_start(message) + message.header + std::string(5'000, 'x');
  for (const std::size_t size : {std::size_t{3}, std::size_t{24}, std::size_t{36}, bytes.size()}) {
    ASSERT_NO_FATAL_FAILURE(open_connection());
    send_bytes(bytes.substr(0, size));
    ::shutdown(socket_.get(), SHUT_WR);
    expect_closed(absl::StatusCode::kUnavailable, "in the middle of a message");
    expect_unharmed();
  }
}

// The stripe closes while the frame that needs it is being received: then no bytes may be placed on it.
TEST_F(HostileAcceptor, AStripeThatClosesAfterThePrefixOfAFrameBeforeReadyEndsTheConnection) {
  ASSERT_NO_FATAL_FAILURE(open_connection());
  ASSERT_NO_FATAL_FAILURE(accept_stripes());
  const std::string frame = bytes_on(0);
  const uint64_t arrived = from_client_->bytes_arrived();
  send_bytes(frame.substr(0, kFramePrefixBytes));
  await_arrived(arrived + kFramePrefixBytes);
  stripes_[0].reset();
  // When the transport closes the second stripe, it has seen that the first one is closed.
  EXPECT_TRUE(is_closed_by_server(stripes_[1]));
  send_bytes(frame.substr(kFramePrefixBytes));
  expect_closed(absl::StatusCode::kInvalidArgument, "uses 2 stripes");
  expect_unharmed();
}

TEST_F(HostileAcceptor, AStripeThatClosesAfterThePrefixOfAFrameAfterReadyEndsTheConnection) {
  ASSERT_NO_FATAL_FAILURE(open_connection());
  ASSERT_NO_FATAL_FAILURE(accept_stripes());
  send_control(StripeControl::kReady);
  const std::string frame = bytes_on(0);
  // "want" and "ready" were sent before.
  const uint64_t arrived = 2 * (kFramePrefixBytes + 1);
  send_bytes(frame.substr(0, kFramePrefixBytes));
  await_arrived(arrived + kFramePrefixBytes);
  stripes_[0].reset();
  EXPECT_TRUE(is_closed_by_server(stripes_[1]));
  send_bytes(frame.substr(kFramePrefixBytes));
  expect_closed(absl::StatusCode::kUnavailable, "closed a stripe");
  expect_unharmed();
}

TEST_F(HostileAcceptor, AStripeThatClosesInTheMiddleOfAMessageEndsTheConnection) {
  ASSERT_NO_FATAL_FAILURE(open_connection());
  ASSERT_NO_FATAL_FAILURE(accept_stripes());
  send_control(StripeControl::kReady);
  send_bytes(bytes_on(0));
  write_all(stripes_[0], bytes_on(1));
  write_all(stripes_[1], bytes_on(2).substr(0, 1'000));
  stripes_[1].reset();
  expect_closed(absl::StatusCode::kUnavailable, "a stripe in the middle of a message");
  EXPECT_TRUE(is_closed_by_server(stripes_[0]));
  expect_unharmed();
}

// The stripes stay open, but no bytes arrive on them.
TEST_F(HostileAcceptor, AFrameAndTheEndInOneReadBeforeTheSharesEndTheConnection) {
  ASSERT_NO_FATAL_FAILURE(open_connection());
  ASSERT_NO_FATAL_FAILURE(accept_stripes());
  send_control(StripeControl::kReady);
  // While the listener blocks in the first message, the frame and the end of the stream accumulate behind it.
  at_client_->hold_back();
  const uint64_t before = 2 * (kFramePrefixBytes + 1);
  send_bytes(encode_frame_start(Message()));
  await_arrived(before + kFramePrefixBytes);
  send_bytes(bytes_on(0));
  ::shutdown(socket_.get(), SHUT_WR);
  at_client_->resume();
  expect_closed(absl::StatusCode::kUnavailable, "in the middle of a message");
  for (const Descriptor& stripe : stripes_) EXPECT_TRUE(is_closed_by_server(stripe));
}

TEST_F(HostileAcceptor, StripesThatCloseBeforeReadyLeaveTheConnection) {
  ASSERT_NO_FATAL_FAILURE(open_connection());
  ASSERT_NO_FATAL_FAILURE(accept_stripes());
  // Bytes that arrive before any frame are never read.
  write_all(stripes_[1], "ahead of everything");
  stripes_[0].reset();
  EXPECT_TRUE(is_closed_by_server(stripes_[1]));
  send_bytes(encode_frame_start(Message()));
  EXPECT_EQ(at_client_->wait_for_messages(1).size(), 1);
  ASSERT_TRUE(from_client_->send(striped_message()).ok());
  // The whole message is sent on the single socket.
  std::string all(encode_frame_start(striped_message()).size() + 7 + kMessageBytes, '\0');
  EXPECT_EQ(::recv(socket_.get(), all.data(), all.size(), MSG_WAITALL), all.size());
  EXPECT_EQ(at_client_->closed_count(), 0);
}

// A transport that waits at most kShortly for a peer that sends nothing.
class SilentAcceptor : public HostileAcceptor {
 protected:
  static constexpr absl::Duration kShortly = absl::Seconds(1);

  void SetUp() override {
    HostileAcceptor::SetUp();
    std::swap(client_, slow_client_);
    client_ = make_tcp_transport(client_options(kShortly));
  }
  void TearDown() override {
    slow_client_->shutdown();
    HostileAcceptor::TearDown();
  }

  std::unique_ptr<Transport> slow_client_;
};

TEST_F(SilentAcceptor, StripesWithoutReadyAreGivenUpAndThePeerIsNamed) {
  ASSERT_NO_FATAL_FAILURE(open_connection());
  ::testing::internal::CaptureStderr();
  ASSERT_NO_FATAL_FAILURE(accept_stripes());
  for (const Descriptor& stripe : stripes_) EXPECT_TRUE(is_closed_by_server(stripe));
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(lines.find("the connection with " + hostile_address_ + ": the peer sent neither \"ready\""),
            std::string::npos)
      << lines;
  EXPECT_NE(lines.find("within 1s"), std::string::npos) << lines;
  // The connection goes on with its one socket.
  ASSERT_TRUE(from_client_->send(striped_message()).ok());
  std::string all(encode_frame_start(striped_message()).size() + 7 + kMessageBytes, '\0');
  EXPECT_EQ(::recv(socket_.get(), all.data(), all.size(), MSG_WAITALL), all.size());
  EXPECT_EQ(at_client_->closed_count(), 0);
}

// "ready" is queued behind a large message that takes long.
TEST_F(SilentAcceptor, ReadyMayTakeLongWhileTheConnectionMakesProgress) {
  ASSERT_NO_FATAL_FAILURE(open_connection());
  ASSERT_NO_FATAL_FAILURE(accept_stripes());
  const absl::Time end = Clock::system().now() + 3 * kShortly;
  uint64_t arrived = from_client_->bytes_arrived();
  std::size_t messages = 0;
  while (Clock::system().now() < end) {
    send_bytes(encode_frame_start(Message()));
    await_arrived(arrived += kFramePrefixBytes);
    ++messages;
  }
  send_control(StripeControl::kReady);
  for (int lane = 0; lane <= kAcceptedStripes; ++lane) {
    write_all(lane == 0 ? socket_ : stripes_[lane - 1], bytes_on(lane));
  }
  const auto received = at_client_->wait_for_messages(messages + 1);
  ASSERT_EQ(received.size(), messages + 1);
  ASSERT_EQ(received.back().buffers.size(), 1);
  EXPECT_TRUE(is_test_buffer(received.back().buffers[0], kMessageBytes, 3));
}

TEST_F(HostileAcceptor, SharesInAnyOrderGiveTheMessage) {
  ASSERT_NO_FATAL_FAILURE(open_connection());
  ASSERT_NO_FATAL_FAILURE(accept_stripes());
  const std::string two = bytes_on(2);
  write_all(stripes_[1], two.substr(0, 1'000));
  send_control(StripeControl::kReady);
  send_bytes(bytes_on(0) + encode_frame_start(Message()));
  write_all(stripes_[0], bytes_on(1));
  write_all(stripes_[1], two.substr(1'000));
  const auto received = at_client_->wait_for_messages(2);
  ASSERT_EQ(received.size(), 2);
  ASSERT_EQ(received[0].buffers.size(), 1);
  EXPECT_TRUE(is_test_buffer(received[0].buffers[0], kMessageBytes, 3));
}

TEST_F(HostileAcceptor, ControlFramesOutOfPlaceAreInvalid) {
  const auto ready = [this] {
    ASSERT_NO_FATAL_FAILURE(accept_stripes());
    send_control(StripeControl::kReady);
  };
  const auto control = [this](const std::string& header) { send_bytes(encode_control_frame(header)); };
  const std::function<void()> cases[] = {
      [&] { control("\x02"); },
      [&] { control("\x03"); },
      [&] { control("x"); },
      [&] { control(""); },
      [&] { control("\x01\x01"); },
      [&] {
        ready();
        control("\x02");
      },
      [&] {
        ready();
        control("\x03");
      },
      [&] {
        accept_stripes();
        control("\x03");
      },
  };
  int index = 0;
  for (const std::function<void()>& act : cases) {
    SCOPED_TRACE(index++);
    ASSERT_NO_FATAL_FAILURE(open_connection());
    ASSERT_NO_FATAL_FAILURE(act());
    expect_closed(absl::StatusCode::kInvalidArgument, "control frame");
    expect_unharmed();
  }
}

// The stripes are still connecting, since the loop has not polled their sockets between the two frames.
TEST_F(HostileAcceptor, ReadyBeforeTheStripesCameIsInvalid) {
  ASSERT_NO_FATAL_FAILURE(open_connection());
  send_bytes(encode_control_frame("\x01") + encode_control_frame("\x02"));
  expect_closed(absl::StatusCode::kInvalidArgument, "control frame");
  expect_unharmed();
}

// Any bytes in any order on the three sockets can at most close the connection.
TEST_F(HostileAcceptor, RandomPiecesOnTheConnectionAndItsStripesLeaveNothing) {
  std::mt19937 random(20);
  ASSERT_NO_FATAL_FAILURE(expect_honest_connection_works());
  const int before = count_descriptors();
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(round);
    ASSERT_NO_FATAL_FAILURE(open_connection());
    ASSERT_NO_FATAL_FAILURE(accept_stripes());
    bool is_ready = false;
    for (int step = 0; step < 12; ++step) {
      const int lane = static_cast<int>(random() % 3);
      Descriptor& socket = lane == 0 ? socket_ : stripes_[lane - 1];
      std::string bytes = bytes_on(lane);
      switch (random() % 5) {
        case 0:
          if (!std::exchange(is_ready, true)) send_control(StripeControl::kReady);
          break;
        case 1:
          bytes.resize(random() % 2'000);
          break;
        case 2:
          bytes[random() % 40] ^= static_cast<char>(1 << random() % 8);
          break;
        case 3:
          if (random() % 4 == 0) socket.reset();
          break;
        case 4:
          break;
      }
      // Do not block: bytes that the transport does not read may fill the socket.
      if (socket.valid()) ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    from_client_->close(absl::CancelledError("requested by the test"));
    EXPECT_FALSE(at_client_->wait_closed().ok());
    from_client_.reset();
    at_client_.reset();
    socket_.reset();
    for (Descriptor& stripe : stripes_) stripe.reset();
  }
  expect_honest_connection_works();
  EXPECT_EQ(count_descriptors_down_to(before), before);
}

}  // namespace
}  // namespace gradwire::transport
