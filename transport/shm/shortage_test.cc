// A process that has no descriptor or memory left for what its peer sends. Nothing of the peer is lost, and
// nothing that needs none of it stops.

#include "gradwire/base/process/shortage.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/base/testing/limits.h"
#include "gradwire/base/testing/log_lines.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/shm/doorbell.h"
#include "gradwire/transport/shm/memory/arena.h"
#include "gradwire/transport/shm/raw_peer.h"
#include "gradwire/transport/shm/shm_transport.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kSmallRing = kMinRingBytes;
// A limit at which even the number of the spare descriptor cannot be used: below it are only the standard
// streams.
constexpr rlim_t kNoDescriptor = 3;

// A transport whose loop is driven only by the test, and a plain peer.
class ShmShortage : public ::testing::Test {
 protected:
  void SetUp() override {
    loop_ = *EventLoop::create();
    ShmOptions options;
    options.ring_bytes = kSmallRing;
    transport_ = make_shm_transport(options, loop_);
    auto address = transport_->listen([this](const std::shared_ptr<Connection>&) { return listener_; });
    ASSERT_TRUE(address.ok()) << address.status();
    address_ = *address;
    peer_ = std::make_unique<RawPeer>(address_);
    drive();
  }
  void TearDown() override {
    transport_->shutdown();
    end(*loop_);
  }

  // Enough rounds to read everything that has arrived.
  void drive() {
    ASSERT_TRUE(loop_->try_enter());
    for (int round = 0; round < 300; ++round) loop_->poll();
    loop_->leave();
  }
  bool drive_until(const std::function<bool()>& done) {
    const absl::Time deadline = Clock::system().now() + kTestTimeout;
    while (!done() && Clock::system().now() < deadline) drive();
    return done();
  }
  bool drive_until_messages(std::size_t count) {
    return drive_until([&] { return listener_->message_count() >= count; });
  }

  void shake_hands() {
    peer_->send_hello(kSmallRing, std::size_t{1} << 30);
    drive();
    ASSERT_TRUE(peer_->wait_and_receive());
    ASSERT_GT(peer_->other_ring().size(), 0U);
  }

  // Memory of a segment with one block, which begins with this byte.
  Descriptor segment_memory(char byte, std::size_t bytes = std::size_t{1} << 20) {
    Descriptor memory(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(memory.get(), static_cast<off_t>(bytes)), 0);
    EXPECT_EQ(::pwrite(memory.get(), &byte, 1, 0), 1);
    EXPECT_EQ(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    return memory;
  }
  void announce(uint32_t id, const Descriptor& memory, std::size_t bytes = std::size_t{1} << 20) {
    SegmentPacket packet;
    packet.segment = id;
    packet.bytes = bytes;
    packet.block_bytes = bytes / 2;
    packet.blocks = 1;
    ASSERT_TRUE(peer_->send(packet, {memory.get()}));
  }
  // A message with one buffer in this segment.
  void put_message_with(uint32_t segment) {
    peer_->put_record(RecordKind::kMessage, 1,
                      list_entry(100, BufferEntry::kInArena, BlockName{segment, 0}.encode()) + "with");
  }
  char first_byte_of(std::size_t message) {
    const std::vector<Message> received = listener_->wait_for_messages(message + 1);
    return *static_cast<const char*>(received.at(message).buffers.at(0).data());
  }

  std::shared_ptr<EventLoop> loop_;
  std::unique_ptr<Transport> transport_;
  std::string address_;
  std::shared_ptr<RecordingListener> listener_ = std::make_shared<RecordingListener>();
  std::unique_ptr<RawPeer> peer_;
};

TEST_F(ShmShortage, SegmentIsReceivedWithTheSpareDescriptor) {
  shake_hands();
  const Descriptor first = segment_memory('1');
  const Descriptor second = segment_memory('2');
  {
    const LimitScope limit(RLIMIT_NOFILE, no_free_descriptor());
    announce(1, first);
    put_message_with(1);
    announce(2, second);
    put_message_with(2);
    peer_->ring();
    drive();
    // Without a spare descriptor the messages would wait.
    EXPECT_EQ(listener_->message_count(), 2U);
  }
  ASSERT_TRUE(drive_until_messages(2));
  EXPECT_EQ(first_byte_of(0), '1');
  EXPECT_EQ(first_byte_of(1), '2');
}

TEST_F(ShmShortage, OnlyMessagesThatNeedTheSegmentWait) {
  shake_hands();
  const Descriptor memory = segment_memory('x');
  ::testing::internal::CaptureStderr();
  {
    const LimitScope limit(RLIMIT_NOFILE, kNoDescriptor);
    announce(1, memory);
    peer_->ring();
    peer_->put_record(RecordKind::kMessage, 0, "first");
    drive();
    EXPECT_EQ(listener_->message_count(), 1U);
    peer_->put_record(RecordKind::kMessage, 0, "second");
    peer_->ring();
    drive();
    EXPECT_EQ(listener_->message_count(), 2U);
    put_message_with(1);
    peer_->put_record(RecordKind::kMessage, 0, "last");
    peer_->ring();
    drive();
    EXPECT_EQ(listener_->message_count(), 2U);
    EXPECT_EQ(listener_->closed_count(), 0);
  }
  EXPECT_TRUE(drive_until_messages(4));
  const std::vector<std::string> lines = captured_lines("cannot receive a segment of shared memory");
  EXPECT_EQ(lines.size(), 1U) << "the first attempt only";
  EXPECT_NE(lines.at(0).find("RLIMIT_NOFILE = 3"), std::string::npos) << lines.at(0);
  const std::vector<Message> received = listener_->wait_for_messages(4);
  EXPECT_EQ(received[2].header, "with");
  EXPECT_EQ(first_byte_of(2), 'x');
  EXPECT_EQ(received[3].header, "last");
  EXPECT_EQ(listener_->closed_count(), 0);
}

TEST_F(ShmShortage, AMessageWithSeveralSegmentsIsResolvedOnce) {
  shake_hands();
  const Descriptor first = segment_memory('1');
  const Descriptor second = segment_memory('2');
  announce(1, first);
  drive();
  {
    const LimitScope limit(RLIMIT_NOFILE, kNoDescriptor);
    announce(2, second);
    peer_->put_record(RecordKind::kMessage, 2,
                      list_entry(100, BufferEntry::kInArena, BlockName{1, 0}.encode()) +
                          list_entry(100, BufferEntry::kInArena, BlockName{2, 0}.encode()) + "both");
    peer_->ring();
    drive();
    EXPECT_EQ(listener_->message_count(), 0U);
  }
  ASSERT_TRUE(drive_until_messages(1));
  const Message message = listener_->take_messages(1).at(0);
  EXPECT_EQ(*static_cast<const char*>(message.buffers.at(0).data()), '1');
  EXPECT_EQ(*static_cast<const char*>(message.buffers.at(1).data()), '2');
}

// The record stays in the ring while it waits, so a hostile peer can change its length.
TEST_F(ShmShortage, ARecordThatWaitsKeepsItsLength) {
  shake_hands();
  const Descriptor memory = segment_memory('x');
  {
    const LimitScope limit(RLIMIT_NOFILE, kNoDescriptor);
    announce(1, memory);
    put_message_with(1);
    peer_->ring();
    drive();
    shared_word<uint64_t>(peer_->own_line(0))
        .store(RecordWord{static_cast<uint8_t>(RecordKind::kMessage), 1, ~uint32_t{0}}.encode());
  }
  peer_->put_record(RecordKind::kMessage, 0, "next");
  ASSERT_TRUE(drive_until_messages(2));
  EXPECT_EQ(listener_->wait_for_messages(2).at(1).header, "next");
}

TEST_F(ShmShortage, ConnectionCanBeClosedWhileAMessageWaits) {
  shake_hands();
  const Descriptor memory = segment_memory('x');
  const LimitScope limit(RLIMIT_NOFILE, kNoDescriptor);
  announce(1, memory);
  put_message_with(1);
  peer_->ring();
  drive();
  transport_->shutdown();
  EXPECT_EQ(listener_->wait_closed().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(listener_->message_count(), 0U);
}

TEST_F(ShmShortage, SegmentThatCannotBeMappedIsCopiedFromAndMappedLater) {
  shake_hands();
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  const Descriptor memory = segment_memory('x', kBytes);
  {
    // The process can map half of the segment, which is more than everything else needs.
    const LimitScope limit(RLIMIT_AS, address_space_and(kBytes / 2));
    announce(1, memory, kBytes);
    put_message_with(1);
    peer_->ring();
    drive();
    ASSERT_EQ(listener_->message_count(), 1U);
    const Message copied = listener_->take_messages(1).at(0);
    EXPECT_EQ(*static_cast<const char*>(copied.buffers.at(0).data()), 'x');
    EXPECT_EQ(copied.buffers.at(0).size(), 100U);
    // The block was given back.
    uint32_t mark = 0;
    EXPECT_EQ(::pread(memory.get(), &mark, sizeof(mark), static_cast<off_t>(mark_offset(kBytes / 2, 1, 0))),
              static_cast<ssize_t>(sizeof(mark)));
    EXPECT_EQ(mark, 1U);
  }
  put_message_with(1);
  peer_->ring();
  ASSERT_TRUE(drive_until_messages(1));
  const Message mapped = listener_->take_messages(1).at(0);
  EXPECT_EQ(*static_cast<const char*>(mapped.buffers.at(0).data()), 'x');
  EXPECT_EQ(mapped.buffers.at(0).sharing(), Buffer::Sharing::kForeign);
  EXPECT_EQ(listener_->closed_count(), 0);
}

// The segment for the buffer finds no memory either, so its bytes come through the ring.
TEST_F(ShmShortage, MessageWithoutMemoryIsDroppedAndTheNextOneArrives) {
  const auto sender = std::make_shared<RecordingListener>();
  auto connection = transport_->connect(address_, sender, absl::Seconds(30));
  ASSERT_TRUE(connection.ok()) << connection.status();
  drive();
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  Message large{"large", {make_test_buffer(100, 1), make_test_buffer(kBytes, 2), make_test_buffer(100, 3)}};
  {
    const LimitScope limit(RLIMIT_AS, address_space_and(kBytes / 2));
    ASSERT_TRUE((*connection)->send(std::move(large)).ok());
    ASSERT_TRUE(drive_until([this] { return listener_->lost().size() == 1; }));
  }
  const auto [header, reason] = listener_->lost().at(0);
  EXPECT_EQ(header, "large");
  EXPECT_TRUE(is_local_shortage(reason)) << reason;
  EXPECT_NE(reason.message().find("RLIMIT_AS"), std::string::npos) << reason;
  ASSERT_TRUE((*connection)->send({"small", {make_test_buffer(kBytes, 4)}}).ok());
  ASSERT_TRUE(drive_until_messages(1));
  const Message small = listener_->take_messages(1).at(0);
  EXPECT_EQ(small.header, "small");
  EXPECT_TRUE(is_test_buffer(small.buffers.at(0), kBytes, 4));
  EXPECT_EQ(listener_->closed_count(), 0);
  EXPECT_EQ(sender->closed_count(), 0);
}

TEST_F(ShmShortage, HandshakeWaitsForADescriptor) {
  HelloPacket hello;
  hello.ring_bytes = kSmallRing;
  Descriptor memory;
  ASSERT_TRUE(SharedMemory::create(ring_memory_bytes(kSmallRing), false, memory).ok());
  {
    const LimitScope limit(RLIMIT_NOFILE, kNoDescriptor);
    ASSERT_TRUE(peer_->send(hello, {memory.get()}));
    drive();
  }
  bool received = false;
  ASSERT_TRUE(drive_until([&] { return received = received || peer_->receive(); }));
  EXPECT_GT(peer_->other_ring().size(), 0U);
  EXPECT_FALSE(peer_->ended());
}

TEST_F(ShmShortage, ConnectingWithoutADescriptorNamesTheLimit) {
  const auto connect = [this] {
    auto listener = std::make_shared<RecordingListener>();
    EXPECT_TRUE(transport_->connect(address_, listener, absl::Seconds(30)).ok());
    return listener;
  };
  {
    const LimitScope limit(RLIMIT_NOFILE, no_free_descriptor());
    const std::shared_ptr<RecordingListener> failed = connect();
    ASSERT_TRUE(drive_until([&] { return failed->closed_count() == 1; }));
    const absl::Status reason = failed->wait_closed();
    EXPECT_TRUE(is_local_shortage(reason)) << reason;
    EXPECT_NE(reason.message().find("RLIMIT_NOFILE"), std::string::npos) << reason;
  }
  const std::shared_ptr<RecordingListener> later = connect();
  drive();
  EXPECT_EQ(later->closed_count(), 0);
}

TEST_F(ShmShortage, ProbeReportsADescriptorAsAShortageAndTheSizeOfFilesAsALimit) {
  {
    const LimitScope limit(RLIMIT_NOFILE, no_free_descriptor());
    EXPECT_TRUE(is_local_shortage(probe_shm())) << probe_shm();
  }
  const LimitScope limit(RLIMIT_FSIZE, 64 << 10);
  const absl::Status too_small = probe_shm();
  EXPECT_EQ(too_small.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(too_small.message().find("RLIMIT_FSIZE = 65536"), std::string::npos) << too_small;
  EXPECT_FALSE(is_local_shortage(too_small));
}

// A connection that does nothing, as the owner of a doorbell.
class IdleConnection : public LoopConnection {
 public:
  explicit IdleConnection(std::shared_ptr<LoopContext> context)
      : LoopConnection(std::move(context), "peer") {}
  absl::StatusOr<uint64_t> send(Message) override { return 1; }
  void capture(uint64_t) override {}
  bool borrows(uint64_t) override { return false; }

 private:
  void refuse_sends(const absl::Status&) override {}
  void flush_in_loop() override {}
  void release_in_loop(const absl::Status&) override {}
};

// A doorbell over a socket whose sends fail.
class ShmDoorbell : public ::testing::Test {
 protected:
  void SetUp() override {
    loop_ = *EventLoop::create();
    connection_ = std::make_shared<IdleConnection>(std::make_shared<LoopContext>(nullptr, loop_));
    // Any open descriptor.
    socket_->open(Descriptor(::open("/dev/null", O_RDWR | O_CLOEXEC)));
    doorbell_ = std::make_unique<Doorbell>(*connection_, socket_);
  }
  void TearDown() override { end(*loop_); }

  bool drive_until(const std::function<bool()>& done) {
    const absl::Time deadline = Clock::system().now() + kTestTimeout;
    loop_->run_until([&] { return done() || Clock::system().now() > deadline; });
    return done();
  }

  // The errors of the next sends; the others succeed.
  std::vector<int> errors_;
  int sends_ = 0;
  std::shared_ptr<ControlSocket> socket_ =
      std::make_shared<ControlSocket>([this](int, const msghdr*, int) -> ssize_t {
        const std::size_t index = static_cast<std::size_t>(sends_++);
        if (index >= errors_.size()) return 1;
        errno = errors_[index];
        return -1;
      });
  std::shared_ptr<EventLoop> loop_;
  std::shared_ptr<IdleConnection> connection_;
  std::unique_ptr<Doorbell> doorbell_;
};

TEST_F(ShmDoorbell, RingsAgainWhenTheKernelHadNoMemory) {
  errors_ = {ENOBUFS, ENOMEM, ENOBUFS};
  doorbell_->ring();
  EXPECT_EQ(sends_, 1);
  EXPECT_TRUE(drive_until([this] { return sends_ == 4; }));
  // Nothing is due any more.
  errors_.clear();
  doorbell_->ring();
  EXPECT_EQ(sends_, 5);
}

TEST_F(ShmDoorbell, OtherErrorsNeedNoDoorbell) {
  for (const int error : {EAGAIN, EPIPE, ECONNRESET}) {
    errors_ = {error};
    sends_ = 0;
    EXPECT_TRUE(socket_->ring()) << error;
  }
  errors_ = {ENOBUFS};
  sends_ = 0;
  EXPECT_FALSE(socket_->ring());
}

TEST_F(ShmDoorbell, DoesNotRingAfterTheEnd) {
  errors_ = {ENOBUFS};
  doorbell_->ring();
  doorbell_->end_in_loop();
  bool later = false;
  loop_->post(
      [&] { loop_->schedule_in_loop(Clock::system().now() + absl::Milliseconds(5), [&] { later = true; }); });
  EXPECT_TRUE(drive_until([&] { return later; }));
  EXPECT_EQ(sends_, 1);
}

}  // namespace
}  // namespace gradwire::transport
