// Tests attacks on a connecting shared memory transport by a listening process of the same user.

#include <unistd.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/transport/process_counts.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/shm/memory/arena.h"
#include "gradwire/transport/shm/raw_peer.h"
#include "gradwire/transport/shm/shm_transport.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kOfferedRing = kMinRingBytes;

// A transport that connects to a plain socket of the test.
class HostileShmAcceptor : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_FALSE(hostile_.address().empty());
    ShmOptions options;
    options.limits.max_message_bytes = uint64_t{1} << 30;
    options.limits.max_buffer_bytes = uint64_t{1} << 29;
    options.max_arena_bytes = std::size_t{64} << 20;
    client_ = make_shm_transport(options);
    // The first connection creates the transport's own descriptors, so that later counts include them.
    connect();
    raw_->close();
    EXPECT_EQ(at_client_->wait_closed().code(), absl::StatusCode::kUnavailable);
    connection_.reset();
  }

  void TearDown() override { client_->shutdown(); }

  // Connects the transport to the plain socket, which receives the transport's hello but sends none.
  void connect(absl::Duration timeout = absl::Seconds(60)) {
    at_client_ = std::make_shared<RecordingListener>();
    auto connection = client_->connect(hostile_.address(), at_client_, timeout);
    ASSERT_TRUE(connection.ok()) << connection.status();
    connection_ = *connection;
    raw_ = hostile_.accept();
    ASSERT_NE(raw_, nullptr);
    ASSERT_TRUE(raw_->wait_and_receive());
    ASSERT_GT(raw_->other_ring().size(), 0);
  }

  void connect_and_shake_hands() {
    ASSERT_NO_FATAL_FAILURE(connect());
    raw_->send_hello(kOfferedRing, std::size_t{1} << 30);
  }

  void expect_invalid(const std::string& text) {
    const absl::Status reason = at_client_->wait_closed();
    EXPECT_EQ(reason.code(), absl::StatusCode::kInvalidArgument) << reason;
    EXPECT_NE(reason.message().find(text), std::string::npos) << reason;
    EXPECT_NE(reason.message().find(hostile_.address()), std::string::npos) << reason;
    EXPECT_TRUE(raw_->is_closed_by_peer());
  }

  // Checks that the client can still connect to another transport and send.
  void expect_unharmed() {
    auto server = make_shm_transport();
    auto at_server = std::make_shared<RecordingListener>();
    auto address = server->listen([&](const std::shared_ptr<Connection>&) { return at_server; });
    ASSERT_TRUE(address.ok()) << address.status();
    auto connection = client_->connect(*address, std::make_shared<RecordingListener>(), absl::Seconds(60));
    ASSERT_TRUE(connection.ok());
    Message message;
    message.buffers = {make_test_buffer(100'000, 1)};
    ASSERT_TRUE((*connection)->send(std::move(message)).ok());
    EXPECT_EQ(at_server->wait_for_messages(1).size(), 1);
    server->shutdown();
  }

  // Drops all references to closed connections.
  void forget() {
    connection_.reset();
    raw_.reset();
  }

  RawListener hostile_;
  std::unique_ptr<Transport> client_;
  std::shared_ptr<RecordingListener> at_client_;
  std::shared_ptr<Connection> connection_;
  std::unique_ptr<RawPeer> raw_;
};

TEST_F(HostileShmAcceptor, WrongHellosEndTheAttempt) {
  Descriptor good, other_size;
  ASSERT_TRUE(SharedMemory::create(ring_memory_bytes(kOfferedRing), false, good).ok());
  ASSERT_TRUE(SharedMemory::create(ring_memory_bytes(kOfferedRing) + 64, false, other_size).ok());
  HelloPacket hello;
  hello.ring_bytes = kOfferedRing;
  auto changed = [&hello](auto change) {
    HelloPacket result = hello;
    change(result);
    return result;
  };
  struct Case {
    HelloPacket packet;
    std::vector<int> descriptors;
    std::size_t size = sizeof(HelloPacket);
  };
  const Case cases[] = {
      {changed([](HelloPacket& h) { h.magic = 1; }), {good.get()}},
      {changed([](HelloPacket& h) { ++h.version; }), {good.get()}},
      {changed([](HelloPacket& h) { h.ring_bytes = 0; }), {good.get()}},
      {changed([](HelloPacket& h) { h.ring_bytes = kOfferedRing + 64; }), {good.get()}},
      {changed([](HelloPacket& h) { h.ring_bytes = uint64_t{1} << 63; }), {good.get()}},
      {hello, {}},
      {hello, {good.get(), good.get()}},
      {hello, {other_size.get()}},
      {hello, {STDERR_FILENO}},
      {hello, {good.get()}, 31},
      // A doorbell before the hello.
      {hello, {}, 1},
  };
  const int before = count_descriptors();
  int index = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(index++);
    ASSERT_NO_FATAL_FAILURE(connect());
    ASSERT_TRUE(raw_->send(&c.packet, c.size, c.descriptors));
    expect_invalid("");
    EXPECT_FALSE(connection_->send(Message()).ok());
  }
  expect_unharmed();
  forget();
  EXPECT_EQ(count_descriptors_down_to(before), before);
}

TEST_F(HostileShmAcceptor, SilenceIsUnavailableAtTheDeadline) {
  ASSERT_NO_FATAL_FAILURE(connect(absl::Milliseconds(20)));
  const absl::Status reason = at_client_->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable) << reason;
  EXPECT_NE(reason.message().find("no answer in time"), std::string::npos) << reason;
  EXPECT_TRUE(raw_->is_closed_by_peer());
}

TEST_F(HostileShmAcceptor, MalformedMessageClosesTheConnectionAndNamesTheLimit) {
  const uint8_t message = static_cast<uint8_t>(RecordKind::kMessage);
  const uint8_t start = static_cast<uint8_t>(RecordKind::kStart);
  const uint8_t data = static_cast<uint8_t>(RecordKind::kData);
  constexpr uint64_t kHuge = (uint64_t{1} << 56) - 1;
  struct Case {
    uint8_t kind;
    uint32_t buffers;
    uint32_t length;
    std::string payload;
    std::string expected;
  };
  const Case cases[] = {
      {4, 0, 8, "", "malformed record"},
      {message, 0, std::numeric_limits<uint32_t>::max(), "", "malformed record"},
      {message, RecordWord::kMaxBuffers, 900, "", "malformed record"},
      {message, 1, 16, list_entry(kHuge, 0, 0), "malformed record"},
      {message, 1, 16, list_entry(kHuge, 1, 0), "max_buffer_bytes = 536870912"},
      {message, 1, 16, list_entry(1, 1, BlockName{1, 0}.encode()), "unknown arena block"},
      {message, 1, 16, list_entry(1, 2, BlockName{1, 0}.encode()), "sends back an arena block"},
      {message, 1, 16, list_entry(1, 3, 0), "malformed list of buffers"},
      {start, 0, 16, start_of(uint64_t{1} << 60, 0), "max_header_bytes = 67108864"},
      {start, 0, 16, start_of(0, 70'000), "max_buffers = 65536"},
      {data, 0, 16, "", "malformed record"},
  };
  const int before = count_descriptors();
  int index = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(index++);
    ASSERT_NO_FATAL_FAILURE(connect_and_shake_hands());
    raw_->put_record(c.kind, c.buffers, c.length, c.payload);
    raw_->ring();
    expect_invalid(c.expected);
    EXPECT_EQ(at_client_->message_count(), 0);
  }
  expect_unharmed();
  forget();
  EXPECT_EQ(count_descriptors_down_to(before), before);
}

TEST_F(HostileShmAcceptor, MalformedPacketClosesTheConnection) {
  Descriptor memory;
  ASSERT_TRUE(SharedMemory::create(1 << 20, false, memory).ok());
  SegmentPacket good;
  good.segment = 1;
  good.bytes = 1 << 20;
  good.block_bytes = 4'096;
  good.blocks = 10;
  SegmentPacket too_large = good;
  too_large.bytes = uint64_t{1} << 40;
  using Send = std::function<void(RawPeer&)>;
  const Send cases[] = {
      [&](RawPeer& raw) { raw.send(too_large, {memory.get()}); },
      [&](RawPeer& raw) { raw.send(good); },
      [&](RawPeer& raw) { raw.send(good, {STDERR_FILENO}); },
      [&](RawPeer& raw) {
        raw.send(good, {memory.get()});
        raw.send(good, {memory.get()});
      },
      [&](RawPeer& raw) { raw.send(DropPacket()); },
      // A second hello.
      [&](RawPeer& raw) { raw.send_hello(kOfferedRing, 0); },
      [&](RawPeer& raw) { raw.send("!!", 2); },
      [&](RawPeer& raw) { raw.send(std::string(300, 'x').data(), 300); },
  };
  const int before = count_descriptors();
  int index = 0;
  for (const Send& send : cases) {
    SCOPED_TRACE(index++);
    ASSERT_NO_FATAL_FAILURE(connect_and_shake_hands());
    send(*raw_);
    expect_invalid("");
  }
  expect_unharmed();
  forget();
  EXPECT_EQ(count_descriptors_down_to(before), before);
}

TEST_F(HostileShmAcceptor, ImpossibleTailClosesTheConnection) {
  ASSERT_NO_FATAL_FAILURE(connect());
  // Corrupt the tail before the handshake ends, so before the transport uses its ring.
  shared_word<uint64_t>(raw_->other_ring().data() + kTailOffset).store(uint64_t{1} << 40);
  raw_->send_hello(kOfferedRing, 0);
  // Send until the ring seems full: then the transport reads the tail.
  Message message;
  message.header.assign(10'000, 'x');
  for (int i = 0; i < 1'000 && connection_->send(message).ok(); ++i) {
  }
  expect_invalid("corrupted the ring");
}

TEST_F(HostileShmAcceptor, GoodMessagesBeforeTheEndArriveAndHalfAMessageDoesNot) {
  ASSERT_NO_FATAL_FAILURE(connect_and_shake_hands());
  raw_->put_record(RecordKind::kMessage, 0, "good");
  raw_->put_record(RecordKind::kStart, 0, start_of(6, 1));
  raw_->put_record(RecordKind::kData, 0, list_entry(4, 0, 0));
  raw_->ring();
  raw_->close();
  const absl::Status reason = at_client_->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable) << reason;
  EXPECT_NE(reason.message().find("in the middle of a message"), std::string::npos) << reason;
  const std::vector<Message> received = at_client_->wait_for_messages(1);
  ASSERT_EQ(received.size(), 1);
  EXPECT_EQ(received[0].header, "good");
}

}  // namespace
}  // namespace gradwire::transport
