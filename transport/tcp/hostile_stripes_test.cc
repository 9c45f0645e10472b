// Tests attacks by plain sockets on a tcp transport with stripes.

#include <sys/socket.h>

#include <utility>

#include "gradwire/transport/tcp/hostile/hostile_fixture.h"
#include "gradwire/transport/tcp/wire/stripe_control.h"

namespace gradwire::transport {
namespace {

// A connection with two stripes; all three are plain sockets.
class HostileStripes : public HostileTcp {
 protected:
  Descriptor connect_stripe(int number, int count, const Preface::Token& token) {
    Descriptor socket = connect_silently();
    write_all(
        socket,
        Preface{.kind = Preface::Kind::kStripe, .stripe = number, .stripes = count, .token = token}.encode());
    return socket;
  }

  void open_connection() {
    token_ = random_token();
    socket_ = connect_silently();
    write_all(socket_, Preface{.token = token_}.encode());
    // The server must know the token before a stripe uses it.
    listener(0);
  }

  void open_all() {
    open_connection();
    for (int i = 0; i < 2; ++i) stripes_[i] = connect_stripe(i + 1, 2, token_);
    EXPECT_EQ(read_control(), StripeControl::kReady);
  }

  StripeControl read_control() {
    char bytes[kFramePrefixBytes + 1] = {};
    timeval timeout = {60, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    EXPECT_EQ(::recv(socket_.get(), bytes, sizeof(bytes), MSG_WAITALL), sizeof(bytes));
    return static_cast<StripeControl>(bytes[kFramePrefixBytes]);
  }

  void send_control(StripeControl control) {
    const char byte = static_cast<char>(control);
    write_all(socket_, encode_control_frame(absl::string_view(&byte, 1)));
  }

  static Message striped_message() {
    Message message;
    message.header = "striped";
    message.buffers = {make_test_buffer(kSize, 3)};
    return message;
  }
  // The bytes of the message on the connection (0) or on a stripe.
  static std::string bytes_on(int lane) {
    const Message message = striped_message();
    const StripeShare share = stripe_share(kSize, 2, lane);
    std::string bytes(static_cast<const char*>(message.buffers[0].data()) + share.offset, share.size);
    if (lane == 0) bytes = encode_frame_start(message, Striping{.stripes = 2}) + message.header + bytes;
    return bytes;
  }

  static constexpr std::size_t kSize = 200'000;
  Preface::Token token_;
  Descriptor socket_;
  Descriptor stripes_[2];
};

TEST_F(HostileStripes, SharesInAnyOrderGiveTheMessage) {
  open_all();
  const std::string two = bytes_on(2);
  write_all(stripes_[1], two.substr(0, 1'000));
  write_all(socket_, bytes_on(0) + encode_frame_start(Message()));
  write_all(stripes_[0], bytes_on(1));
  write_all(stripes_[1], two.substr(1'000));
  const auto received = listener(0)->wait_for_messages(2);
  ASSERT_EQ(received.size(), 2);
  EXPECT_EQ(received[0].header, "striped");
  ASSERT_EQ(received[0].buffers.size(), 1);
  EXPECT_TRUE(is_test_buffer(received[0].buffers[0], kSize, 3));
  EXPECT_TRUE(received[1].header.empty());
}

TEST_F(HostileStripes, AStripeThatClosesInTheMiddleEndsTheConnection) {
  open_all();
  write_all(socket_, bytes_on(0));
  write_all(stripes_[0], bytes_on(1));
  write_all(stripes_[1], bytes_on(2).substr(0, 1'000));
  stripes_[1].reset();
  const absl::Status reason = listener(0)->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(reason.message().find("a stripe in the middle of a message"), std::string::npos) << reason;
  EXPECT_EQ(listener(0)->message_count(), 0);
  EXPECT_TRUE(is_closed_by_server(socket_));
}

TEST_F(HostileStripes, StripeThatClosesEndsTheConnectionAfterEarlierMessages) {
  open_all();
  write_all(socket_, encode_frame_start(Message()));
  stripes_[0].reset();
  EXPECT_EQ(listener(0)->wait_closed().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(listener(0)->message_count(), 1);
}

// The stripes stay open, but no bytes arrive on them.
TEST_F(HostileStripes, ConnectionThatEndsBeforeItsSharesArriveIsClosed) {
  open_all();
  write_all(socket_, bytes_on(0));
  write_all(stripes_[1], bytes_on(2).substr(0, 1'000));
  ::shutdown(socket_.get(), SHUT_WR);
  const absl::Status reason = listener(0)->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(reason.message().find("middle of a message"), std::string::npos) << reason;
  for (const Descriptor& stripe : stripes_) EXPECT_TRUE(is_closed_by_server(stripe));
}

TEST_F(HostileStripes, AForeignTokenJoinsNothing) {
  open_connection();
  Preface::Token other = token_;
  other[1] ^= 1;
  for (int i = 1; i <= 2; ++i) {
    Descriptor stripe = connect_stripe(i, 2, other);
    EXPECT_TRUE(is_closed_by_server(stripe));
  }
  write_all(socket_, encode_frame_start(Message()));
  EXPECT_EQ(listener(0)->wait_for_messages(1).size(), 1);
}

// A server that waits only one second for all stripes of a connection.
class IncompleteStripes : public HostileStripes {
 protected:
  void SetUp() override {
    TcpOptions options = server_options();
    options.introduction_timeout = absl::Seconds(1);
    start(options);
  }
};

TEST_F(IncompleteStripes, AreClosedAndMayComeAgain) {
  open_connection();
  // The connection is introduced by its preface; RecordingListener does not ask for more.
  stripes_[0] = connect_stripe(1, 2, token_);
  EXPECT_TRUE(is_closed_by_server(stripes_[0]));
  write_all(socket_, encode_frame_start(Message()));
  EXPECT_EQ(listener(0)->wait_for_messages(1).size(), 1);
  for (int i = 0; i < 2; ++i) stripes_[i] = connect_stripe(i + 1, 2, token_);
  EXPECT_EQ(read_control(), StripeControl::kReady);
  write_all(socket_, bytes_on(0));
  for (int i = 0; i < 2; ++i) write_all(stripes_[i], bytes_on(i + 1));
  EXPECT_EQ(listener(0)->wait_for_messages(2).size(), 2);
}

TEST_F(HostileStripes, StripesThatDoNotFitTogetherJoinNothing) {
  open_connection();
  for (const auto& [number, count] :
       {std::pair(1, 2), std::pair(2, 3), std::pair(0, 2), std::pair(3, 2), std::pair(9, 9)}) {
    const bool fits = number == 1;
    Descriptor stripe = connect_stripe(number, count, token_);
    if (fits) {
      stripes_[0] = std::move(stripe);
    } else {
      EXPECT_TRUE(is_closed_by_server(stripe)) << number << " of " << count;
    }
  }
  // The server has given up the incomplete set of stripes.
  EXPECT_TRUE(is_closed_by_server(stripes_[0]));
  for (int i = 0; i < 2; ++i) stripes_[i] = connect_stripe(i + 1, 2, token_);
  EXPECT_EQ(read_control(), StripeControl::kReady);
  // One stripe too many.
  Descriptor third = connect_stripe(1, 2, token_);
  EXPECT_TRUE(is_closed_by_server(third));
  write_all(socket_, encode_frame_start(Message()));
  EXPECT_EQ(listener(0)->wait_for_messages(1).size(), 1);
}

TEST_F(HostileStripes, AStripedFrameWithoutStripesIsInvalid) {
  open_connection();
  write_all(socket_, bytes_on(0));
  const absl::Status reason = listener(0)->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(reason.message().find("uses 2 stripes"), std::string::npos) << reason;
}

TEST_F(HostileStripes, DroppedStripesMayBeOpenedAgain) {
  open_all();
  for (int round = 0; round < 3; ++round) {
    send_control(StripeControl::kDrop);
    EXPECT_EQ(read_control(), StripeControl::kDrop);
    for (int i = 0; i < 2; ++i) stripes_[i].reset();
    for (int i = 0; i < 2; ++i) stripes_[i] = connect_stripe(i + 1, 2, token_);
    EXPECT_EQ(read_control(), StripeControl::kReady);
    for (int i = 1; i <= 2; ++i) write_all(stripes_[i - 1], bytes_on(i));
    write_all(socket_, bytes_on(0));
    EXPECT_EQ(listener(0)->wait_for_messages(round + 1).size(), round + 1);
  }
}

TEST_F(HostileStripes, ControlFramesOutOfPlaceAreInvalid) {
  for (const std::string& header : {std::string("\x02"), std::string("\x03"), std::string("\x01"),
                                    std::string("x"), std::string(), std::string("\x03\x03")}) {
    const std::size_t index = listener_count();
    Descriptor socket = connect();
    listener(index);
    write_all(socket, encode_control_frame(header));
    EXPECT_EQ(listener(index)->wait_closed().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(HostileStripes, ConnectionsThatCloseEarlyLeaveNoDescriptors) {
  const int before = count_descriptors();
  for (int i = 0; i < 50; ++i) {
    const std::size_t index = listener_count();
    token_ = random_token();
    socket_ = connect_silently();
    write_all(socket_, Preface{.token = token_}.encode());
    listener(index);
    for (int j = 0; j < 2; ++j) stripes_[j] = connect_stripe(j + 1, 2, token_);
    if (i % 2 == 0) write_all(socket_, bytes_on(0));
    if (i % 3 == 0) write_all(stripes_[0], bytes_on(1));
    if (i % 5 == 0) stripes_[1].reset();
    socket_.reset();
    // InvalidArgument if the frame arrived before the stripes had joined.
    const absl::StatusCode code = listener(index)->wait_closed().code();
    EXPECT_TRUE(code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kInvalidArgument) << code;
    for (Descriptor& stripe : stripes_) {
      if (stripe.valid()) {
        EXPECT_TRUE(is_closed_by_server(stripe));
      }
      stripe.reset();
    }
  }
  EXPECT_EQ(count_descriptors_down_to(before), before);
}

}  // namespace
}  // namespace gradwire::transport
