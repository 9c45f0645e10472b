// Tests of features that only connections through shared memory have.

#include "gradwire/transport/shm/shm_transport.h"

#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/process_counts.h"
#include "gradwire/transport/recording_listener.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Counts messages and drops them.
class Dropping : public ConnectionListener {
 public:
  void on_message(Connection&, Message) override {
    MutexLock lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  void on_closed(Connection&, absl::Status) override {}
  void wait_for(int count) {
    MutexLock lock(mutex_);
    while (count_ < count) changed_.wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Number of bytes of Gradwire's shared memory that this process has mapped, from /proc.
std::size_t mapped_bytes() {
  std::ifstream maps("/proc/self/maps");
  std::size_t total = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:gradwire") == std::string::npos) continue;
    unsigned long from = 0, to = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &from, &to) == 2) total += to - from;
  }
  return total;
}

class ShmPair : public ::testing::Test {
 protected:
  void start(ShmOptions options = ShmOptions()) {
    options.counters = counters_;
    server_ = make_shm_transport(options);
    client_ = make_shm_transport(options);
    auto address = server_->listen([this](const std::shared_ptr<Connection>& connection) {
      MutexLock lock(mutex_);
      // Later connections are of the tests themselves.
      if (to_client_ == nullptr) to_client_ = connection;
      accepted_.notify_all();
      return server_listener_;
    });
    ASSERT_TRUE(address.ok()) << address.status();
    address_ = *address;
    auto connection = client_->connect(*address, at_client_, absl::Seconds(30));
    ASSERT_TRUE(connection.ok()) << connection.status();
    to_server_ = *connection;
    {
      MutexLock lock(mutex_);
      while (to_client_ == nullptr) accepted_.wait(mutex_);
    }
    // When a message has come back, both ends have received the other's hello.
    ASSERT_TRUE(to_client_->send(Message()).ok());
    ASSERT_EQ(at_client_->wait_for_messages(1).size(), 1);
  }

  void TearDown() override {
    if (client_ != nullptr) client_->shutdown();
    if (server_ != nullptr) server_->shutdown();
  }

  static Message with_buffer(Buffer buffer) {
    Message message;
    message.buffers.push_back(std::move(buffer));
    return message;
  }

  const std::shared_ptr<ShmCounters> counters_ = std::make_shared<ShmCounters>();
  std::unique_ptr<Transport> server_, client_;
  std::string address_;
  Mutex mutex_;
  CondVar accepted_;
  std::shared_ptr<Connection> to_server_, to_client_;
  std::shared_ptr<RecordingListener> at_server_ = std::make_shared<RecordingListener>();
  std::shared_ptr<RecordingListener> at_client_ = std::make_shared<RecordingListener>();
  std::shared_ptr<ConnectionListener> server_listener_ = at_server_;
};

TEST_F(ShmPair, BorrowedBuffersAreNotReadAfterSend) {
  start();
  at_server_->hold_back();
  Buffer mine = make_test_buffer(5 * kMiB, 1, Buffer::Sharing::kBorrowed);
  ASSERT_TRUE(to_server_->send(with_buffer(mine)).ok());
  EXPECT_EQ(mine.owner().use_count(), 1);
  std::memset(mine.data(), 0, mine.size());
  at_server_->resume();
  EXPECT_TRUE(is_test_buffer(at_server_->wait_for_messages(1).at(0).buffers[0], 5 * kMiB, 1));
  EXPECT_EQ(counters_->arena_bytes.load(), 5 * kMiB);
  EXPECT_EQ(to_server_->no_room().bytes, 0);
  EXPECT_EQ(to_server_->no_room().last, absl::InfinitePast());
}

TEST_F(ShmPair, AllocatedBuffersAreSentWithoutACopy) {
  start();
  auto buffer = to_server_->allocate(3 * kMiB);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0);
  std::memset(buffer->data(), 42, buffer->size());
  char* const mine = static_cast<char*>(buffer->data());
  ASSERT_TRUE(to_server_->send(with_buffer(*std::move(buffer))).ok());
  const Message received = at_server_->wait_for_messages(1).at(0);
  char* const theirs = static_cast<char*>(received.buffers[0].data());
  EXPECT_EQ(theirs[0], 42);
  EXPECT_EQ(theirs[3 * kMiB - 1], 42);
  // Both pointers are mappings of the same memory.
  theirs[100] = 7;
  EXPECT_EQ(mine[100], 7);
  EXPECT_EQ(counters_->arena_bytes.load(), 0);
  EXPECT_EQ(counters_->moved_bytes.load(), 3 * kMiB);
}

// Sends the buffers of each message back, one higher in each byte at the front.
class Returning : public ConnectionListener {
 public:
  void on_message(Connection& connection, Message message) override {
    for (Buffer& buffer : message.buffers) ++*static_cast<char*>(buffer.data());
    EXPECT_TRUE(connection.send(std::move(message)).ok());
  }
  void on_closed(Connection&, absl::Status) override {}
};

TEST_F(ShmPair, BlockTravelsThereAndBackWithoutACopy) {
  server_listener_ = std::make_shared<Returning>();
  start();
  auto buffer = to_server_->allocate(3 * kMiB);
  ASSERT_TRUE(buffer.ok());
  char* const data = static_cast<char*>(buffer->data());
  std::memset(data, 1, 3 * kMiB);
  Message message = with_buffer(*std::move(buffer));
  (void)at_client_->take_messages(1);
  for (int round = 1; round <= 5; ++round) {
    ASSERT_TRUE(to_server_->send(std::move(message)).ok());
    message = std::move(at_client_->take_messages(1).at(0));
    ASSERT_EQ(message.buffers[0].data(), data);
    EXPECT_EQ(data[0], round + 1);
    EXPECT_EQ(data[3 * kMiB - 1], 1);
  }
  EXPECT_EQ(counters_->arena_bytes.load(), 0);
  EXPECT_EQ(counters_->ring_bytes.load(), 0);
  EXPECT_EQ(counters_->moved_bytes.load(), 10 * 3 * kMiB);
}

TEST_F(ShmPair, BlockOfAnotherConnectionIsCopied) {
  start();
  auto at_second = std::make_shared<RecordingListener>();
  auto second = client_->connect(address_, at_second, absl::Seconds(30));
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_TRUE((*second)->send(Message()).ok());
  ASSERT_EQ(at_server_->take_messages(1).size(), 1);
  (void)at_client_->take_messages(1);
  ASSERT_TRUE(to_client_->send(with_buffer(make_test_buffer(3 * kMiB, 5))).ok());
  ASSERT_TRUE((*second)->send(std::move(at_client_->take_messages(1).at(0))).ok());
  EXPECT_TRUE(is_test_buffer(at_server_->take_messages(1).at(0).buffers[0], 3 * kMiB, 5));
  EXPECT_EQ(counters_->moved_bytes.load(), 0);
}

TEST_F(ShmPair, AllocatedBufferWithAnotherOwnerIsCopied) {
  start();
  auto buffer = to_server_->allocate(3 * kMiB);
  ASSERT_TRUE(buffer.ok());
  std::memset(buffer->data(), 1, buffer->size());
  ASSERT_TRUE(to_server_->send(with_buffer(*buffer)).ok());
  std::memset(buffer->data(), 2, buffer->size());
  EXPECT_EQ(*static_cast<char*>(at_server_->wait_for_messages(1).at(0).buffers[0].data()), 1);
  EXPECT_EQ(counters_->moved_bytes.load(), 0);
  // For another connection it is ordinary memory.
  ASSERT_TRUE(to_client_->send(with_buffer(*std::move(buffer))).ok());
  EXPECT_EQ(*static_cast<char*>(at_client_->wait_for_messages(2).at(1).buffers[0].data()), 2);
  EXPECT_EQ(counters_->moved_bytes.load(), 0);
}

TEST_F(ShmPair, AllocatedMemoryOutlivesTheConnection) {
  start();
  auto large = to_server_->allocate(3 * kMiB);
  auto small = to_server_->allocate(10);
  ASSERT_TRUE(large.ok() && small.ok());
  TearDown();
  to_server_.reset();
  std::memset(large->data(), 1, large->size());
  std::memset(small->data(), 1, small->size());
}

// Both listeners keep all received messages, and both arenas are soon exhausted.
TEST_F(ShmPair, MessagesProgressBothWaysWhileReceiversKeepEverything) {
  constexpr int kMessages = 60;
  constexpr std::size_t kSize = 300'000;
  ShmOptions options;
  options.max_arena_bytes = 4 * kMiB;
  start(options);
  auto send_all = [](Connection& connection, int seed) {
    for (int i = 0; i < kMessages; ++i) {
      Message message = with_buffer(make_test_buffer(kSize, seed + i, Buffer::Sharing::kBorrowed));
      const Buffer mine = message.buffers[0];
      auto ticket = connection.send(std::move(message));
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      connection.capture(*ticket);
      std::memset(mine.data(), 0, mine.size());
    }
  };
  std::thread other([&] { send_all(*to_client_, 1'000); });
  send_all(*to_server_, 0);
  other.join();
  const std::vector<Message> at_server = at_server_->wait_for_messages(kMessages);
  const std::vector<Message> at_client = at_client_->wait_for_messages(1 + kMessages);
  ASSERT_EQ(at_server.size(), kMessages);
  ASSERT_EQ(at_client.size(), 1 + kMessages);
  for (int i = 0; i < kMessages; ++i) {
    EXPECT_TRUE(is_test_buffer(at_server[i].buffers[0], kSize, i)) << i;
    EXPECT_TRUE(is_test_buffer(at_client[1 + i].buffers[0], kSize, 1'000 + i)) << i;
  }
  EXPECT_GT(counters_->arena_bytes.load(), 0);
  EXPECT_GT(counters_->ring_bytes.load(), 0);
  // Each end reports those that it has sent.
  const Connection::NoRoom there = to_server_->no_room(), back = to_client_->no_room();
  EXPECT_EQ(there.bytes + back.bytes, counters_->ring_bytes.load());
  EXPECT_GT(there.bytes, 0);
  EXPECT_LE(there.last, Clock::system().now());
  EXPECT_GT(there.last, Clock::system().now() - absl::Hours(1));
}

TEST_F(ShmPair, AMessageLargerThanTheArenaArrives) {
  ShmOptions options;
  options.max_arena_bytes = kMiB;
  start(options);
  Message message = with_buffer(make_test_buffer(20 * kMiB, 5));
  message.buffers.push_back(make_test_buffer(100'000, 6));
  message.buffers.push_back(make_test_buffer(10 * kMiB, 7));
  ASSERT_TRUE(to_server_->send(std::move(message)).ok());
  const Message received = at_server_->wait_for_messages(1).at(0);
  EXPECT_TRUE(is_test_buffer(received.buffers[0], 20 * kMiB, 5));
  EXPECT_TRUE(is_test_buffer(received.buffers[1], 100'000, 6));
  EXPECT_TRUE(is_test_buffer(received.buffers[2], 10 * kMiB, 7));
}

TEST_F(ShmPair, MessagesQueuedBehindAFullArenaUseItWhenItHasRoom) {
  ShmOptions options;
  options.max_arena_bytes = 8 * kMiB;
  start(options);
  at_server_->hold_back();
  EXPECT_EQ(to_server_->queued_bytes(), 0);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(to_server_->send(with_buffer(make_test_buffer(3 * kMiB, i))).ok());
  EXPECT_GE(to_server_->queued_bytes(), 10 * 3 * kMiB);
  at_server_->resume();
  const std::vector<Message> received = at_server_->wait_for_messages(20);
  ASSERT_EQ(received.size(), 20);
  EXPECT_EQ(to_server_->queued_bytes(), 0);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(is_test_buffer(received[i].buffers[0], 3 * kMiB, i));
}

// Buffers without room in the arena go through the ring in parts. Both ends count these.
TEST_F(ShmPair, AMessageThatArrivesInPartsIsAnnouncedOnce) {
  ShmOptions options;
  options.max_arena_bytes = 2 * kMiB;
  start(options);
  constexpr std::size_t kMessages = 3;
  for (std::size_t i = 0; i < kMessages; ++i) {
    Message message{"message " + std::to_string(i), {make_test_buffer(10, 1), make_test_buffer(100'000, 2)}};
    message.buffers.push_back(make_test_buffer(5 * kMiB, 3));
    ASSERT_TRUE(to_server_->send(std::move(message)).ok());
    ASSERT_TRUE(to_server_->send({"small", {}}).ok());
    ASSERT_EQ(at_server_->wait_for_messages(2 * i + 2).size(), 2 * i + 2);
  }
  const std::vector<RecordingListener::Announced> announced = at_server_->announced();
  ASSERT_EQ(announced.size(), kMessages);
  uint64_t before = 0;
  for (std::size_t i = 0; i < kMessages; ++i) {
    EXPECT_EQ(announced[i].header, "message " + std::to_string(i));
    EXPECT_EQ(announced[i].bytes, announced[i].header.size() + 10 + 100'000 + 5 * kMiB);
    // The second buffer is in the arena.
    EXPECT_GE(announced[i].arrived, announced[i].header.size() + 100'000);
    EXPECT_LT(announced[i].arrived, announced[i].bytes);
    EXPECT_GE(announced[i].counted, before + announced[i].arrived);
    before = announced[i].counted;
  }
  EXPECT_GE(to_client_->bytes_arrived(), before + 4 * kMiB);
}

TEST_F(ShmPair, AMessageInTheArenaIsNotAnnounced) {
  start();
  ASSERT_TRUE(to_server_->send(with_buffer(make_test_buffer(8 * kMiB, 1))).ok());
  ASSERT_EQ(at_server_->wait_for_messages(1).size(), 1);
  EXPECT_TRUE(at_server_->announced().empty());
  EXPECT_EQ(to_client_->bytes_arrived(), 0);
}

TEST_F(ShmPair, TheWrittenPartOfALargeMessageIsNotQueued) {
  ShmOptions options;
  options.max_arena_bytes = kMiB;
  start(options);
  at_server_->hold_back();
  ASSERT_TRUE(to_server_->send({"small", {}}).ok());
  ASSERT_TRUE(to_server_->send(with_buffer(make_test_buffer(20 * kMiB, 1))).ok());
  EXPECT_LE(to_server_->queued_bytes(), 20 * kMiB - 64'000);
  EXPECT_GT(to_server_->queued_bytes(), 10 * kMiB);
  at_server_->resume();
  ASSERT_EQ(at_server_->wait_for_messages(2).size(), 2);
  EXPECT_EQ(to_server_->queued_bytes(), 0);
}

TEST_F(ShmPair, IdleMemoryIsGivenBack) {
  ShmOptions options;
  options.arena_idle_time = absl::Milliseconds(10);
  options.max_idle_arena_bytes = 0;
  auto dropping = std::make_shared<Dropping>();
  server_listener_ = dropping;
  start(options);
  const std::size_t before = mapped_bytes();
  ASSERT_TRUE(to_server_->send(with_buffer(make_test_buffer(50 * kMiB, 1))).ok());
  // The lease keeps its memory mapped.
  auto leased = to_server_->allocate(20 * kMiB);
  ASSERT_TRUE(leased.ok());
  EXPECT_GE(mapped_bytes(), before + 20 * kMiB);
  leased = Buffer();
  dropping->wait_for(1);
  const absl::Time deadline = Clock::system().now() + kTestTimeout;
  while (mapped_bytes() > before + 10 * kMiB && Clock::system().now() < deadline) std::this_thread::yield();
  EXPECT_LE(mapped_bytes(), before + 10 * kMiB);
  ASSERT_TRUE(to_server_->send(with_buffer(make_test_buffer(5 * kMiB, 2))).ok());
  dropping->wait_for(2);
}

TEST_F(ShmPair, ConnectionUsesNoFurtherDescriptorsForLargeMessages) {
  start();
  const int before = count_descriptors();
  std::size_t sent = 0;
  for (std::size_t size = 5'000; size < 40 * kMiB; size *= 3) {
    ASSERT_TRUE(to_server_->send(with_buffer(make_test_buffer(size, 1))).ok());
    ++sent;
  }
  EXPECT_EQ(at_server_->wait_for_messages(sent).size(), sent);
  EXPECT_EQ(count_descriptors_down_to(before), before);
}

TEST(ShmTransport, WorksHere) { EXPECT_TRUE(probe_shm().ok()) << probe_shm(); }

TEST(ShmTransport, AnotherHostsAddressIsUnavailableAtOnce) {
  auto transport = make_shm_transport();
  auto listener = std::make_shared<RecordingListener>();
  const std::string address = "shm:00000000-0000-0000-0000-000000000000:1234567890abcdef";
  EXPECT_FALSE(is_local_shm_address(address));
  auto connection = transport->connect(address, listener, absl::Hours(1));
  ASSERT_TRUE(connection.ok());
  const absl::Status reason = listener->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(reason.message().find("another host"), std::string::npos) << reason;
}

TEST(ShmTransport, ItsOwnAddressIsLocal) {
  auto transport = make_shm_transport();
  auto address = transport->listen([](const std::shared_ptr<Connection>&) { return nullptr; });
  ASSERT_TRUE(address.ok());
  EXPECT_TRUE(is_local_shm_address(*address));
  EXPECT_FALSE(is_local_shm_address("127.0.0.1:80"));
  EXPECT_FALSE(is_local_shm_address(""));
}

TEST(ShmTransport, AMessageOverTheLimitsIsRefused) {
  ShmOptions options;
  options.limits.max_header_bytes = 10;
  auto transport = make_shm_transport(options);
  auto listener = std::make_shared<RecordingListener>();
  const std::string address =
      *transport->listen([&](const std::shared_ptr<Connection>&) { return listener; });
  auto connection = transport->connect(address, std::make_shared<RecordingListener>(), absl::Seconds(30));
  ASSERT_TRUE(connection.ok());
  Message message;
  message.header = "more than ten bytes";
  const absl::Status status = (*connection)->send(std::move(message)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("max_header_bytes"), std::string::npos) << status;
  ASSERT_TRUE((*connection)->send(Message()).ok());
  EXPECT_EQ(listener->wait_for_messages(1).size(), 1);
}

TEST(ShmTransport, RingSizeThatIsNotAPowerOfTwoIsRefused) {
  ShmOptions options;
  options.ring_bytes = 100'000;
  auto transport = make_shm_transport(options);
  EXPECT_EQ(transport->listen([](const std::shared_ptr<Connection>&) { return nullptr; }).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::transport
