// Tests attacks on a listening shared memory transport by a process of the same user.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/process_counts.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/shm/memory/arena.h"
#include "gradwire/transport/shm/raw_peer.h"
#include "gradwire/transport/shm/shm_transport.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kRing = kMinRingBytes;

class HostileShm : public ::testing::Test {
 protected:
  void SetUp() override { start(absl::Seconds(60)); }

  void start(absl::Duration introduction_timeout) {
    if (server_ != nullptr) server_->shutdown();
    ShmOptions options;
    options.limits.max_message_bytes = uint64_t{1} << 30;
    options.limits.max_buffer_bytes = uint64_t{1} << 29;
    options.max_arena_bytes = std::size_t{64} << 20;
    options.introduction_timeout = introduction_timeout;
    server_ = make_shm_transport(options);
    auto listening = server_->listen([this](const std::shared_ptr<Connection>& connection) {
      MutexLock lock(mutex_);
      connections_.push_back(connection);
      listeners_.push_back(std::make_shared<RecordingListener>());
      changed_.notify_all();
      return listeners_.back();
    });
    ASSERT_TRUE(listening.ok()) << listening.status();
    address_ = *listening;
  }

  void TearDown() override { server_->shutdown(); }

  std::shared_ptr<RecordingListener> listener(std::size_t index) {
    const absl::Time deadline = Clock::system().now() + kTestTimeout;
    MutexLock lock(mutex_);
    while (listeners_.size() <= index && Clock::system().now() < deadline) {
      Clock::system().wait_until(mutex_, changed_, deadline);
    }
    return listeners_.at(index);
  }

  std::shared_ptr<Connection> connection_of(std::size_t index) {
    (void)listener(index);
    MutexLock lock(mutex_);
    return connections_.at(index);
  }

  // Returns a peer that has completed the handshake.
  std::unique_ptr<RawPeer> peer() {
    auto result = std::make_unique<RawPeer>(address_);
    result->send_hello(kRing, std::size_t{1} << 30);
    EXPECT_TRUE(result->wait_and_receive());
    EXPECT_GT(result->other_ring().size(), 0);
    return result;
  }

  // Checks that a message of another client arrives, and that no other connection has received any.
  void expect_still_serving() {
    auto client = make_shm_transport();
    auto client_listener = std::make_shared<RecordingListener>();
    auto connection = client->connect(address_, client_listener, absl::Seconds(30));
    ASSERT_TRUE(connection.ok());
    Message message;
    message.header = "hello";
    message.buffers = {make_test_buffer(100'000, 1)};
    ASSERT_TRUE((*connection)->send(std::move(message)).ok());
    const std::shared_ptr<RecordingListener> served = listener_with_a_message();
    ASSERT_NE(served, nullptr);
    EXPECT_EQ(served->message_count(), 1);
    client->shutdown();
    EXPECT_EQ(served->wait_closed().code(), absl::StatusCode::kUnavailable);
  }

  // Returns the listener of a connection that has received a message; nullptr after kTestTimeout.
  std::shared_ptr<RecordingListener> listener_with_a_message() {
    const absl::Time deadline = Clock::system().now() + kTestTimeout;
    while (Clock::system().now() < deadline) {
      {
        MutexLock lock(mutex_);
        for (const auto& listener : listeners_) {
          if (listener->message_count() > 0) return listener;
        }
      }
      std::this_thread::yield();
    }
    return nullptr;
  }

  std::unique_ptr<Transport> server_;
  std::string address_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<RecordingListener>> listeners_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Connection>> connections_ ABSL_GUARDED_BY(mutex_);
};

Descriptor sealed_memory(std::size_t bytes) {
  Descriptor descriptor;
  EXPECT_TRUE(SharedMemory::create(bytes, false, descriptor).ok());
  return descriptor;
}

Descriptor unsealed_memory(std::size_t bytes, int seals = 0) {
  Descriptor descriptor(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(descriptor.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(descriptor.get(), F_ADD_SEALS, seals), 0);
  return descriptor;
}

TEST_F(HostileShm, InvalidHelloClosesTheConnection) {
  const std::size_t bytes = ring_memory_bytes(kRing);
  const Descriptor good = sealed_memory(bytes);
  const Descriptor small = sealed_memory(bytes - 1);
  const Descriptor large = sealed_memory(bytes + 1);
  const Descriptor unsealed = unsealed_memory(bytes);
  const Descriptor shrinkable = unsealed_memory(bytes, F_SEAL_GROW | F_SEAL_SEAL);
  const Descriptor read_only =
      unsealed_memory(bytes, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
  const Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const Descriptor huge(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (huge.valid() && ::ftruncate(huge.get(), 2 << 20) == 0) {
    ::fcntl(huge.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  }
  HelloPacket hello;
  hello.ring_bytes = kRing;
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
      {changed([](HelloPacket& h) { h.ring_bytes = kRing + 64; }), {good.get()}},
      {changed([](HelloPacket& h) { h.ring_bytes = kRing * 2; }), {good.get()}},
      {changed([](HelloPacket& h) { h.ring_bytes = uint64_t{1} << 63; }), {good.get()}},
      {hello, {}},
      {hello, {good.get(), good.get()}},
      {hello, {good.get(), good.get(), good.get(), good.get(), good.get(), good.get(), good.get()}},
      {hello, {small.get()}},
      {hello, {large.get()}},
      {hello, {unsealed.get()}},
      {hello, {shrinkable.get()}},
      {hello, {read_only.get()}},
      {hello, {null.get()}},
      {changed([](HelloPacket& h) { h.ring_bytes = (2 << 20); }), {huge.valid() ? huge.get() : null.get()}},
      {hello, {good.get()}, 31},
      {hello, {good.get()}, 1},
      {hello, {}, 1},
  };
  const int before = count_descriptors();
  int index = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(index++);
    RawPeer raw(address_);
    ASSERT_TRUE(raw.send(&c.packet, c.size, c.descriptors));
    EXPECT_TRUE(raw.is_closed_by_peer());
    EXPECT_EQ(raw.other_ring().size(), 0);
  }
  // A packet that is longer than any valid one.
  {
    RawPeer raw(address_);
    const std::string long_packet(5'000, 'x');
    ASSERT_TRUE(raw.send(long_packet.data(), long_packet.size()));
    EXPECT_TRUE(raw.is_closed_by_peer());
  }
  expect_still_serving();
  EXPECT_EQ(count_descriptors_down_to(before), before);
}

TEST_F(HostileShm, SilentPeerIsDisconnectedAfterTheTimeout) {
  start(absl::Milliseconds(20));
  const int before = count_descriptors();
  RawPeer raw(address_);
  EXPECT_TRUE(raw.is_closed_by_peer());
  raw.close();
  EXPECT_EQ(count_descriptors_down_to(before), before);
}

TEST_F(HostileShm, PeersThatCloseEarlyLeaveNoDescriptors) {
  const int before = count_descriptors();
  constexpr int kPeers = 100;
  for (int i = 0; i < kPeers; ++i) {
    RawPeer raw(address_);
    if (i % 3 == 1) raw.send_hello(kRing, 0);
    if (i % 3 == 2) raw.ring();
  }
  // Connections are accepted in order, so all earlier ones have been handled when this one is served.
  expect_still_serving();
  EXPECT_EQ(count_descriptors_down_to(before), before);
}

TEST_F(HostileShm, MalformedMessageClosesTheConnectionAndNamesTheLimit) {
  const uint8_t message = static_cast<uint8_t>(RecordKind::kMessage);
  const uint8_t data = static_cast<uint8_t>(RecordKind::kData);
  constexpr uint64_t kHuge = (uint64_t{1} << 56) - 1;
  struct Case {
    uint8_t kind;
    uint32_t buffers;
    uint32_t length;
    std::string payload;
    std::string expected;
  };
  const uint8_t start = static_cast<uint8_t>(RecordKind::kStart);
  const Case cases[] = {
      {4, 0, 8, "", "malformed record"},
      {255, 0, 8, "", "malformed record"},
      {message, 0, std::numeric_limits<uint32_t>::max(), "", "malformed record"},
      {message, 0, static_cast<uint32_t>(max_record_payload(kRing) + 1), "", "malformed record"},
      {message, 1, 15, "", "malformed record"},
      {message, RecordWord::kMaxBuffers, 900, "", "malformed record"},
      {message, 1, 20, list_entry(5, 0, 0), "malformed record"},
      {message, 1, 16, list_entry(kHuge, 0, 0), "malformed record"},
      {message, 2, 32, list_entry(kHuge, 0, 0) + list_entry(kHuge, 0, 0), "malformed record"},
      {message, 1, 16, list_entry(1, 3, 0), "malformed list of buffers"},
      {message, 1, 16, list_entry(1, 255, 0), "malformed list of buffers"},
      {message, 1, 16, list_entry(kHuge, 1, 0), "max_buffer_bytes = 536870912"},
      {message, 1, 16, list_entry(1, 1, BlockName{1, 0}.encode()), "unknown arena block"},
      {message, 1, 16, list_entry(0, 1, 0), "unknown arena block"},
      {message, 1, 16, list_entry(1, 2, BlockName{1, 0}.encode()), "sends back an arena block"},
      {message, 1, 16, list_entry(0, 2, 0), "sends back an arena block"},
      {message, 1, 16, list_entry(kHuge, 2, 0), "max_buffer_bytes = 536870912"},
      {start, 0, 8, "", "malformed record"},
      {start, 0, 16, start_of(uint64_t{1} << 60, 0), "max_header_bytes = 67108864"},
      {start, 0, 16, start_of(0, 70'000), "max_buffers = 65536"},
      {start, 0, 16, start_of(0, ~uint64_t{0}), "max_buffers = 65536"},
      {data, 0, 16, "", "malformed record"},
  };
  const int before = count_descriptors();
  std::size_t index = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(index);
    auto raw = peer();
    raw->put_record(c.kind, c.buffers, c.length, c.payload);
    raw->ring();
    const absl::Status reason = listener(index++)->wait_closed();
    EXPECT_EQ(reason.code(), absl::StatusCode::kInvalidArgument) << reason;
    EXPECT_NE(reason.message().find(c.expected), std::string::npos) << reason;
    EXPECT_NE(reason.message().find("shm:process"), std::string::npos) << reason;
    EXPECT_TRUE(raw->is_closed_by_peer());
  }
  MutexLock lock(mutex_);
  connections_.clear();
  EXPECT_EQ(count_descriptors_down_to(before), before);
}

TEST_F(HostileShm, RecordsInTheWrongOrderEndTheConnection) {
  const std::string three_too_large =
      list_entry(1 << 29, 0, 0) + list_entry(1 << 29, 0, 0) + list_entry(1 << 29, 0, 0);
  const std::vector<std::vector<std::pair<RecordKind, std::string>>> cases = {
      {{RecordKind::kStart, start_of(5, 0)}, {RecordKind::kStart, start_of(5, 0)}},
      {{RecordKind::kStart, start_of(5, 0)}, {RecordKind::kMessage, "header"}},
      {{RecordKind::kStart, start_of(5, 0)}, {RecordKind::kData, ""}},
      {{RecordKind::kStart, start_of(5, 0)}, {RecordKind::kData, "123456"}},
      {{RecordKind::kStart, start_of(0, 3)}, {RecordKind::kData, three_too_large}},
      {{RecordKind::kStart, start_of(0, 1)}, {RecordKind::kData, list_entry(1, 7, 0)}},
      {{RecordKind::kStart, start_of(0, 1)}, {RecordKind::kData, list_entry(1, 1, 5)}},
      {{RecordKind::kStart, start_of(0, 0)}, {RecordKind::kData, "1"}},
  };
  std::size_t index = 0;
  for (const auto& records : cases) {
    SCOPED_TRACE(index);
    auto raw = peer();
    for (const auto& [kind, payload] : records) raw->put_record(kind, 0, payload);
    raw->ring();
    EXPECT_EQ(listener(index++)->wait_closed().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(HostileShm, GoodMessagesBeforeABadOneArrive) {
  auto raw = peer();
  raw->put_record(RecordKind::kMessage, 0, "good");
  raw->put_record(RecordKind::kMessage, 2, list_entry(3, 0, 0) + list_entry(0, 0, 0) + "header" + "abc");
  raw->put_record(RecordKind::kStart, 0, start_of(6, 1));
  raw->put_record(RecordKind::kData, 0, list_entry(4, 0, 0).substr(0, 5));
  raw->put_record(RecordKind::kData, 0, list_entry(4, 0, 0).substr(5) + "hea");
  raw->put_record(RecordKind::kData, 0, "der12");
  raw->put_record(RecordKind::kData, 0, "34");
  raw->put_record(99, 0, 0, "");
  raw->ring();
  EXPECT_EQ(listener(0)->wait_closed().code(), absl::StatusCode::kInvalidArgument);
  const std::vector<Message> received = listener(0)->wait_for_messages(3);
  ASSERT_EQ(received.size(), 3);
  EXPECT_EQ(received[0].header, "good");
  EXPECT_EQ(received[1].header, "header");
  EXPECT_EQ(std::memcmp(received[1].buffers[0].data(), "abc", 3), 0);
  EXPECT_EQ(received[2].header, "header");
  EXPECT_EQ(std::memcmp(received[2].buffers[0].data(), "1234", 4), 0);
}

// Size of a buffer that the transport sends to a plain peer, and the entry with which the peer sends it back:
// the buffer is in the first block of the arena.
constexpr std::size_t kSentBytes = 10'000;
std::string sent_back_entry() { return list_entry(kSentBytes, 2, BlockName{1, 0}.encode()); }

// The tests of blocks that a peer sends back.
class SentBackShm : public HostileShm {
 protected:
  // Returns a plain peer that has received a buffer in a block.
  std::unique_ptr<RawPeer> peer_with_block() {
    auto raw = peer();
    Message message;
    message.buffers = {make_test_buffer(kSentBytes, 3)};
    EXPECT_TRUE(connection_of(0)->send(std::move(message)).ok());
    EXPECT_TRUE(raw->wait_and_receive());
    return raw;
  }
};

TEST_F(SentBackShm, BlockIsTakenBackOnce) {
  auto raw = peer_with_block();
  ASSERT_EQ(raw->other_segments().size(), 1);
  raw->put_record(RecordKind::kMessage, 1, sent_back_entry() + "back");
  raw->ring();
  const std::vector<Message> received = listener(0)->wait_for_messages(1);
  ASSERT_EQ(received.size(), 1);
  EXPECT_EQ(received[0].header, "back");
  EXPECT_TRUE(is_test_buffer(received[0].buffers[0], kSentBytes, 3));
  raw->put_record(RecordKind::kMessage, 1, sent_back_entry() + "again");
  raw->ring();
  const absl::Status reason = listener(0)->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kInvalidArgument) << reason;
  EXPECT_NE(reason.message().find("sends back an arena block"), std::string::npos) << reason;
  EXPECT_EQ(listener(0)->message_count(), 1);
  // The buffer outlives the connection.
  EXPECT_TRUE(is_test_buffer(received[0].buffers[0], kSentBytes, 3));
}

TEST_F(SentBackShm, BlockIsTakenBackOnceInAMessage) {
  auto raw = peer_with_block();
  raw->put_record(RecordKind::kMessage, 2, sent_back_entry() + sent_back_entry());
  raw->ring();
  EXPECT_EQ(listener(0)->wait_closed().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(listener(0)->message_count(), 0);
}

// The peer marks the block as free, so it may be in use for another message when it comes back.
TEST_F(SentBackShm, BlockThatIsMarkedAndSentBackHarmsOnlyThePeer) {
  auto raw = peer_with_block();
  const std::shared_ptr<Connection> connection = connection_of(0);
  ASSERT_EQ(raw->other_segments().size(), 1);
  const SharedMemory& segment = raw->other_segments()[0];
  std::memset(segment.data(), 7, kSentBytes);
  for (std::size_t at = segment.size() / 2; at + 4 <= segment.size(); at += kLineBytes) {
    // Marks are behind the blocks; other bytes do no harm.
    if (segment.data()[at] == 0) segment.data()[at] = 1;
  }
  raw->put_record(RecordKind::kMessage, 1, sent_back_entry());
  raw->ring();
  const std::vector<Message> received = listener(0)->wait_for_messages(1);
  ASSERT_EQ(received.size(), 1);
  const char* const bytes = static_cast<const char*>(received[0].buffers[0].data());
  // Further messages do not use the block while this process holds it.
  for (int i = 0; i < 20; ++i) {
    Message other;
    other.buffers = {make_test_buffer(kSentBytes, 4)};
    ASSERT_TRUE(connection->send(std::move(other)).ok());
  }
  EXPECT_EQ(bytes[0], 7);
  EXPECT_EQ(bytes[kSentBytes - 1], 7);
}

TEST_F(SentBackShm, BlockThatComesBackInAnIncompleteMessageIsFreed) {
  auto raw = peer_with_block();
  raw->put_record(RecordKind::kStart, 0, start_of(5, 1));
  raw->put_record(RecordKind::kData, 0, sent_back_entry() + "ab");
  raw->ring();
  raw->close();
  EXPECT_EQ(listener(0)->wait_closed().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(listener(0)->message_count(), 0);
  expect_still_serving();
}

TEST_F(HostileShm, MalformedPacketClosesTheConnection) {
  const Descriptor memory = sealed_memory(1 << 20);
  const Descriptor unsealed = unsealed_memory(1 << 20);
  auto segment = [](uint64_t bytes, uint64_t block_bytes, uint64_t blocks) {
    SegmentPacket packet;
    packet.segment = 1;
    packet.bytes = bytes;
    packet.block_bytes = block_bytes;
    packet.blocks = blocks;
    return packet;
  };
  const SegmentPacket good = segment(1 << 20, 4'096, 10);
  const SegmentPacket too_large = segment(uint64_t{1} << 40, 4'096, 10);
  const SegmentPacket crowded = segment(1 << 20, 4'096, 256);
  const SegmentPacket longer = segment(1 << 21, 4'096, 10);
  const DropPacket drop;
  const HelloPacket hello;
  using Send = std::function<void(RawPeer&)>;
  const Send cases[] = {
      [&](RawPeer& raw) { raw.send(too_large, {memory.get()}); },
      [&](RawPeer& raw) { raw.send(crowded, {memory.get()}); },
      [&](RawPeer& raw) { raw.send(longer, {memory.get()}); },
      [&](RawPeer& raw) { raw.send(good); },
      [&](RawPeer& raw) {
        raw.send(good, {memory.get(), memory.get()});
      },
      [&](RawPeer& raw) { raw.send(good, {unsealed.get()}); },
      [&](RawPeer& raw) {
        raw.send(good, {memory.get()});
        raw.send(good, {memory.get()});
      },
      [&](RawPeer& raw) { raw.send(drop); },
      [&](RawPeer& raw) { raw.send(drop, {memory.get()}); },
      [&](RawPeer& raw) { raw.send(hello, {memory.get()}); },
      [&](RawPeer& raw) { raw.send("!", 1, {memory.get()}); },
      [&](RawPeer& raw) { raw.send("!!", 2); },
      [&](RawPeer& raw) { raw.send(std::string(300, 'x').data(), 300); },
  };
  const int before = count_descriptors();
  std::size_t index = 0;
  for (const Send& send : cases) {
    SCOPED_TRACE(index);
    auto raw = peer();
    send(*raw);
    EXPECT_EQ(listener(index++)->wait_closed().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(raw->is_closed_by_peer());
  }
  EXPECT_EQ(count_descriptors_down_to(before), before);
}

TEST_F(HostileShm, SegmentOfAMessageIsFoundEvenIfItsPacketIsReadLate) {
  auto raw = peer();
  const Descriptor memory = sealed_memory(1 << 20);
  SegmentPacket segment;
  segment.segment = 7;
  segment.bytes = 1 << 20;
  segment.block_bytes = 4'096;
  segment.blocks = 10;
  ASSERT_TRUE(raw->send(segment, {memory.get()}));
  // Both buffers refer to the same block, which harms only the peer itself.
  const std::string entry = list_entry(100, 1, BlockName{7, 9}.encode());
  raw->put_record(RecordKind::kMessage, 2, entry + entry + "header");
  raw->ring();
  const std::vector<Message> received = listener(0)->wait_for_messages(1);
  ASSERT_EQ(received.size(), 1);
  EXPECT_EQ(received[0].header, "header");
  EXPECT_EQ(received[0].buffers[1].size(), 100);
  std::memset(received[0].buffers[0].data(), 1, 100);
  // The segment is dropped while it is in use, and then the peer closes: the memory must stay mapped.
  DropPacket drop;
  drop.segment = 7;
  ASSERT_TRUE(raw->send(drop));
  raw->close();
  EXPECT_EQ(listener(0)->wait_closed().code(), absl::StatusCode::kUnavailable);
  std::memset(received[0].buffers[1].data(), 2, 100);
}

TEST_F(HostileShm, ImpossibleTailClosesTheConnection) {
  auto raw = peer();
  listener(0);
  std::shared_ptr<Connection> connection;
  {
    MutexLock lock(mutex_);
    connection = connections_.at(0);
  }
  shared_word<uint64_t>(raw->other_ring().data() + kTailOffset).store(uint64_t{1} << 40);
  // Send until the ring seems full: then the transport reads the tail.
  Message message;
  message.header.assign(10'000, 'x');
  for (int i = 0; i < 1'000 && connection->send(message).ok(); ++i) {
  }
  const absl::Status reason = listener(0)->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(reason.message().find("corrupted the ring"), std::string::npos) << reason;
}

TEST_F(HostileShm, BlocksReleasedTooEarlyHarmOnlyThePeer) {
  auto raw = peer();
  listener(0);
  std::shared_ptr<Connection> connection;
  {
    MutexLock lock(mutex_);
    connection = connections_.at(0);
  }
  for (int i = 0; i < 200; ++i) {
    Message message;
    message.buffers = {make_test_buffer(10'000 + i * 5'000, i)};
    ASSERT_TRUE(connection->send(std::move(message)).ok());
    while (raw->receive()) {
    }
    for (const SharedMemory& segment : raw->other_segments())
      std::memset(segment.data(), 0xff, segment.size());
    for (std::size_t line = 0; line < 8; ++line)
      std::memset(raw->other_ring().data() + line * 64 + 512, i, 64);
  }
  raw->close();
  EXPECT_EQ(listener(0)->wait_closed().code(), absl::StatusCode::kUnavailable);
  {
    MutexLock lock(mutex_);
    connections_.clear();
  }
  expect_still_serving();
}

}  // namespace
}  // namespace gradwire::transport
