#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/cpu/world_p2p/p2p_wire.h"
#include "gradwire/collectives/cpu/world_p2p/world_p2p.h"
#include "gradwire/collectives/cpu/world_p2p/world_p2p_test_world.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

// A stranger that speaks the transport's protocol, and may know the world's secret.
class HostileWorldP2p : public ::testing::Test {
 protected:
  HostileWorldP2p() : world_(0, {}) {
    world_.ends.push_back(world_.make(0, 3, {"tcp"}, kEager));
    address_ = world_.store->get("mesh/rank/0").substr(4);
    address_.pop_back();
    token_ = world_.store->get("mesh/token");
  }
  ~HostileWorldP2p() override { stranger_->shutdown(); }

  struct Connected {
    std::shared_ptr<transport::Connection> connection;
    std::shared_ptr<transport::RecordingListener> listener;
    void send(std::string header, std::size_t buffer = 0) {
      transport::Message message{std::move(header), {}};
      if (buffer > 0) message.buffers.push_back(transport::make_test_buffer(buffer, 1));
      EXPECT_TRUE(connection->send(std::move(message)).ok());
    }
    void expect_closed() { EXPECT_EQ(listener->wait_closed().code(), absl::StatusCode::kUnavailable); }
  };
  Connected connect() {
    Connected connected;
    connected.listener = std::make_shared<transport::RecordingListener>();
    auto connection = stranger_->connect(address_, connected.listener, absl::Seconds(30));
    EXPECT_TRUE(connection.ok());
    connected.connection = *connection;
    return connected;
  }
  std::string hello(int64_t rank, uint64_t size, const std::string& token) {
    return encode_frame({.kind = FrameKind::kHello, .tag = rank, .size = size}) + token;
  }

  World world_;
  std::string address_;
  std::string token_;
  // The ends advertise an address of the network.
  std::unique_ptr<transport::Transport> stranger_ = transport::make_tcp_transport();
};

TEST_F(HostileWorldP2p, StrangersAreRefused) {
  const std::string wrong(kTokenBytes, '0');
  for (const std::string& first :
       {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(4096, '\xff'), hello(1, 3, wrong),
        hello(1, 3, "short"), hello(1, 2, token_), hello(0, 3, token_), hello(-1, 3, token_),
        hello(3, 3, token_), encode_frame({.kind = FrameKind::kWelcome}),
        encode_frame({.kind = FrameKind::kEager, .channel = 3, .size = 0})}) {
    Connected connected = connect();
    connected.send(first);
    connected.expect_closed();
  }
  // The strangers had no rank, so no rank is lost.
  Connected member = connect();
  member.send(hello(1, 3, token_));
  ASSERT_EQ(member.listener->wait_for_messages(1).size(), 1u);
  member.send(encode_frame({.kind = FrameKind::kEager, .channel = 3, .size = 1}) + "a");
  std::string received(1, 'x');
  EXPECT_EQ(world_[0].receive(1, 3, 0, span(received), timeout()).result().value_or(-1), 1);
  // A second connection of the same rank.
  Connected second = connect();
  second.send(hello(1, 3, token_));
  second.expect_closed();
}

TEST_F(HostileWorldP2p, MemberThatViolatesTheProtocolIsLost) {
  std::string bad_version = encode_frame({.kind = FrameKind::kEager});
  bad_version[2] = 9;
  std::string bad_kind = encode_frame({.kind = FrameKind::kEager});
  bad_kind[3] = 77;
  const std::vector<std::pair<std::string, std::size_t>> violations = {
      {bad_version, 0},
      {bad_kind, 0},
      {"", 0},
      {encode_frame({.kind = FrameKind::kEager, .size = uint64_t{1} << 60}), 0},
      {encode_frame({.kind = FrameKind::kEager, .size = 5}), 4},
      {encode_frame({.kind = FrameKind::kEager, .size = uint64_t{17} << 20}), std::size_t{17} << 20},
      {encode_frame({.kind = FrameKind::kRts, .size = 5}), 0},
      {encode_frame({.kind = FrameKind::kData, .size = 5, .id = 3}), 5},
      {encode_frame({.kind = FrameKind::kCancel, .code = 99, .id = 3}), 0},
      {encode_frame({.kind = FrameKind::kCredit, .size = 5}), 0},
      {encode_frame({.kind = FrameKind::kCts, .id = 5}), 0},
      {hello(1, 3, token_), 0},
  };
  for (const auto& [header, buffer] : violations) {
    World world(0, {});
    world.ends.push_back(world.make(0, 3, {"tcp"}, kEager));
    address_ = world.store->get("mesh/rank/0").substr(4);
    address_.pop_back();
    Connected member = connect();
    member.send(hello(1, 3, world.store->get("mesh/token")));
    ASSERT_EQ(member.listener->wait_for_messages(1).size(), 1u);
    std::string received(1, 'x');
    Future<int> receive = world[0].receive(1, 3, 0, span(received), timeout());
    member.send(header, buffer);
    member.expect_closed();
    EXPECT_EQ(receive.result().status().code(), absl::StatusCode::kUnavailable) << receive.result().status();
  }
}

// The address in the store belongs to a peer that sends frames which a receiver must not send.
TEST_F(HostileWorldP2p, ReceiverThatViolatesTheProtocolIsLost) {
  for (const Frame& answer : {Frame{.kind = FrameKind::kCts, .id = 1}, Frame{.kind = FrameKind::kEager},
                              Frame{.kind = FrameKind::kHello}}) {
    World world(0, {});
    world.ends.push_back(world.make(0, 2, {"tcp"}, kEager));
    std::unique_ptr<transport::Transport> listening = transport::make_tcp_transport();
    auto address = listening->listen([&](const std::shared_ptr<transport::Connection>&) {
      return std::make_shared<transport::RecordingListener>(
          [&](transport::Connection& connection, const transport::Message&) {
            (void)connection.send({encode_frame(answer), {}});
          });
    });
    ASSERT_TRUE(address.ok());
    world.store->set("mesh/rank/1", absl::StrCat("tcp ", *address, "\n"));
    std::string data(1, 'x');
    EXPECT_EQ(world[0].send(1, 3, 0, span(data), timeout()).result().code(), absl::StatusCode::kUnavailable);
    listening->shutdown();
  }
}

// A rank can leave while this rank is still connecting to it. What it has sent before is not lost, and the
// error says that it has left.
TEST_F(HostileWorldP2p, MemberThatCannotBeReachedIsStillReceivedFrom) {
  std::unique_ptr<transport::Transport> ended = transport::make_tcp_transport();
  const auto address = ended->listen([](const auto&) { return nullptr; });
  ASSERT_TRUE(address.ok());
  ended->shutdown();
  world_.store->set("mesh/rank/1", absl::StrCat("tcp ", *address, "\n"));
  Connected member = connect();
  member.send(hello(1, 3, token_));
  ASSERT_EQ(member.listener->wait_for_messages(1).size(), 1u);

  std::string data(1, 'x');
  const absl::Status sent = world_[0].send(1, 3, 0, span(data), timeout()).result();
  EXPECT_NE(sent.message().find("rank 1 cannot be reached"), std::string::npos) << sent;
  std::string received(1, 'x');
  const Future<int> first = world_[0].receive(1, 3, 0, span(received), timeout());
  member.send(encode_frame({.kind = FrameKind::kEager, .channel = 3, .size = 1}) + "a");
  EXPECT_EQ(first.result().value_or(-1), 1) << first.result().status();
  const Future<int> second = world_[0].receive(1, 3, 0, span(received), timeout());
  member.send(encode_frame({.kind = FrameKind::kGoodbye}));
  member.connection->close(absl::CancelledError("ended by the test"), absl::Seconds(5));
  EXPECT_EQ(second.result().status().message(), "rank 1 has left");
}

// Plays rank 1 of a world of two: receives the frames of rank 0, and sends the frames of the test.
class ScriptedRank {
 public:
  explicit ScriptedRank(World& world) {
    auto address = transport_->listen([this](const std::shared_ptr<transport::Connection>& connection) {
      MutexLock lock(mutex_);
      connection_ = connection;
      return listener_;
    });
    EXPECT_TRUE(address.ok());
    world.store->set("mesh/rank/1", absl::StrCat("tcp ", *address, "\n"));
  }
  ~ScriptedRank() { transport_->shutdown(); }

  // Returns the received frame with this index.
  Frame frame(std::size_t index) {
    const absl::StatusOr<Frame> frame = parse_frame(listener_->wait_for_messages(index + 1).at(index));
    EXPECT_TRUE(frame.ok());
    return *frame;
  }
  void send(const Frame& frame) {
    MutexLock lock(mutex_);
    EXPECT_TRUE(connection_->send({encode_frame(frame), {}}).ok());
  }
  transport::RecordingListener& listener() { return *listener_; }

 private:
  std::unique_ptr<transport::Transport> transport_ = transport::make_tcp_transport();
  std::shared_ptr<transport::RecordingListener> listener_ = std::make_shared<transport::RecordingListener>();
  Mutex mutex_;
  std::shared_ptr<transport::Connection> connection_ ABSL_GUARDED_BY(mutex_);
};

// The transport still reads the first message when both messages end. The callback of the one that completes
// first waits for the end of the other.
TEST_F(HostileWorldP2p, CallbackOfAnEndedMessageMayCancelAnotherOne) {
  World world(0, {});
  world.ends.push_back(world.make(0, 2, {"tcp"}, kEager));
  ScriptedRank other(world);
  std::string large(std::size_t{64} << 20, 'x');
  const Future<void> first = world[0].send(1, 3, 0, span(large), timeout());
  EXPECT_EQ(other.frame(0).kind, FrameKind::kHello);
  other.send({.kind = FrameKind::kWelcome});
  const Frame rts = other.frame(1);
  EXPECT_EQ(rts.kind, FrameKind::kRts);
  // Rank 1 reads nothing from the next frame on.
  other.listener().hold_back();
  const Future<void> second = world[0].send(1, 3, 0, span(large), timeout());
  const Future<void> third = world[0].send(1, 3, 0, span(large), timeout());
  other.send({.kind = FrameKind::kCts, .id = rts.id});
  other.send({.kind = FrameKind::kNack,
              .code = static_cast<uint32_t>(absl::StatusCode::kAborted),
              .id = rts.id + 2});
  // This shows that the frames sent before have been processed.
  EXPECT_EQ(third.result().code(), absl::StatusCode::kAborted);
  first.on_ready_inline([&](const absl::Status&) { second.cancel(); });
  world[0].abort(3, absl::AbortedError("requested by the test"));
  EXPECT_EQ(first.result().code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(second.result().ok());
  other.listener().resume();
}

// The transport still reads the message when a thread on duty ends it. That thread must neither wait nor copy
// the rest.
TEST_F(HostileWorldP2p, MessageThatEndsOnDutyKeepsItsBytes) {
  World world(0, {});
  world.ends.push_back(world.make(0, 2, {"tcp"}, kEager));
  ScriptedRank other(world);
  const std::string content(std::size_t{64} << 20, 'x');
  std::string large = content;
  const Future<void> first = world[0].send(1, 3, 0, span(large), timeout());
  EXPECT_EQ(other.frame(0).kind, FrameKind::kHello);
  other.send({.kind = FrameKind::kWelcome});
  const Frame rts = other.frame(1);
  // Rank 1 reads nothing from the next frame on.
  other.listener().hold_back();
  const Future<void> second = world[0].send(1, 3, 0, span(large), timeout());
  bool was_on_duty = false;
  second.on_ready_inline([&](const absl::Status&) {
    was_on_duty = on_duty();
    world[0].abort(3, absl::AbortedError("requested by the test"));
  });
  other.send({.kind = FrameKind::kCts, .id = rts.id});
  other.send({.kind = FrameKind::kNack,
              .code = static_cast<uint32_t>(absl::StatusCode::kAborted),
              .id = rts.id + 1});
  EXPECT_EQ(first.result().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(was_on_duty);
  large.assign(large.size(), 'y');
  other.listener().resume();
  const transport::Message data = other.listener().wait_for_messages(4).at(3);
  ASSERT_EQ(data.buffers.size(), 1u);
  EXPECT_TRUE(absl::string_view(static_cast<const char*>(data.buffers[0].data()), data.buffers[0].size()) ==
              content);
}

// A plain socket, which can send bytes that no transport would.
class PlainSocket {
 public:
  // The socket holds few bytes that have not been read.
  explicit PlainSocket(const std::string& address)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int bytes = 4096;
    EXPECT_EQ(::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)), 0);
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    // The preface of transport/tcp/wire/preface.h, with its own token.
    static char next = 'a';
    write(std::string("GWt1\2\0\0\0", 8) + std::string(16, next++));
  }
  ~PlainSocket() { ::close(socket_); }

  // Returns the beginning of a frame (transport/tcp/wire/frame.h) with a header of this size and, unless
  // `buffer_bytes` is 0, a buffer.
  static std::string frame_start(uint64_t header_bytes, uint64_t buffer_bytes) {
    std::string frame("GWf1\2\0\0\0", 8);
    append(frame, header_bytes, 8);
    append(frame, buffer_bytes > 0 ? 1 : 0, 4);
    append(frame, 0, 4);
    if (buffer_bytes > 0) append(frame, buffer_bytes, 8);
    return frame;
  }
  void begin_frame(uint64_t header_bytes, uint64_t buffer_bytes) {
    write(frame_start(header_bytes, buffer_bytes));
  }
  void write(const std::string& bytes) {
    // The other end may have closed the connection.
    (void)::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void read_a_little() {
    char bytes[4096];
    (void)::recv(socket_, bytes, sizeof(bytes), MSG_DONTWAIT);
  }
  bool closed_within(absl::Duration time) {
    pollfd waiting{socket_, POLLIN, 0};
    char byte;
    return ::poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(time))) == 1 &&
           ::recv(socket_, &byte, 1, MSG_DONTWAIT) <= 0;
  }

 private:
  static void append(std::string& out, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
  }

  const int socket_;
};

// A message is refused before it has arrived completely. A stranger that sends nothing has ten seconds.
TEST_F(HostileWorldP2p, StrangerCannotMakeTheRankAllocateMuch) {
  PlainSocket header(address_);
  header.begin_frame(uint64_t{1} << 20, 0);
  PlainSocket buffer(address_);
  buffer.begin_frame(kFrameBytes, uint64_t{1} << 30);
  buffer.write(std::string(std::size_t{64} << 10, 'x'));
  PlainSocket silent(address_);
  EXPECT_TRUE(header.closed_within(absl::Seconds(5)));
  EXPECT_TRUE(buffer.closed_within(absl::Seconds(5)));
  EXPECT_FALSE(silent.closed_within(absl::ZeroDuration()));
}

// The member reads a little, so that the system does not give it up.
TEST_F(HostileWorldP2p, MemberThatDoesNotReadAnswersIsLost) {
  PlainSocket member(address_);
  member.write(PlainSocket::frame_start(hello(1, 3, token_).size(), 0) + hello(1, 3, token_));
  world_[0].abort(3, absl::AbortedError("ended"));
  std::string received(1, 'x');
  const Future<int> receive = world_[0].receive(1, 4, 0, span(received), in(absl::Minutes(10)));
  // 10 MB of answers may wait, in addition to those in the sockets.
  const std::string rts = encode_frame({.kind = FrameKind::kRts, .channel = 3, .size = 5, .id = 7});
  std::string frames;
  for (int i = 0; i < 1'000; ++i) frames += PlainSocket::frame_start(rts.size(), 0) + rts;
  for (int sent = 0; sent < 5'000 && !receive.done(); ++sent) {
    member.write(frames);
    member.read_a_little();
  }
  EXPECT_EQ(receive.result().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(receive.result().status().message().find("does not read the answers"), std::string::npos)
      << receive.result().status();
}

}  // namespace
}  // namespace gradwire::collectives::cpu
