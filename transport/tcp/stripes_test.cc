// Tests of stripes between two tcp transports. Attacks on stripes are tested in hostile_stripes_test.cc.

#include <cstring>
#include <functional>
#include <thread>

#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/loop_thread.h"
#include "gradwire/transport/process_counts.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gradwire/transport/tcp/wire/frame.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kSize = 1'000'017;
constexpr int kStripes = 3;

TcpOptions striped(int stripes = kStripes) {
  TcpOptions options;
  options.bind_address = "127.0.0.1";
  options.stripes = stripes;
  options.stripe_from_bytes = kMinStripedBytes;
  return options;
}

class TcpStripes : public ::testing::Test {
 protected:
  // The first message has a buffer of `first` bytes. If `early`, it is sent before the client begins to
  // connect.
  void open(const TcpOptions& server_options, const TcpOptions& client_options, std::size_t first = 10,
            bool early = false) {
    server_ = make_tcp_transport(server_options);
    if (early) client_loop_ = *EventLoop::create();
    client_ = make_tcp_transport(client_options, client_loop_);
    auto address = server_->listen([this](const std::shared_ptr<Connection>& connection) {
      MutexLock lock(mutex_);
      accepted_ = connection;
      return at_server_;
    });
    ASSERT_TRUE(address.ok()) << address.status();
    auto connection = client_->connect(*address, at_client_, absl::Seconds(30));
    ASSERT_TRUE(connection.ok()) << connection.status();
    from_client_ = *connection;
    send(*from_client_, first);
    if (early) {
      ASSERT_TRUE(client_thread_.start(client_loop_, WaitPolicy()).ok());
    }
    ASSERT_TRUE(await([this] {
      MutexLock lock(mutex_);
      return accepted_ != nullptr;
    }));
    MutexLock lock(mutex_);
    from_server_ = accepted_;
    descriptors_ = count_descriptors();
  }

  void TearDown() override {
    client_->shutdown();
    server_->shutdown();
    if (client_loop_ == nullptr) return;
    client_loop_->post([this] { client_loop_->end_in_loop(); });
    client_thread_.join();
  }

  static bool await(const std::function<bool()>& condition) {
    const absl::Time deadline = Clock::system().now() + kTestTimeout;
    while (!condition()) {
      if (Clock::system().now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }

  uint64_t send(Connection& connection, std::size_t size, Buffer::Sharing sharing = Buffer::Sharing::kOwned) {
    Message message;
    message.header = std::to_string(size);
    message.buffers = {make_test_buffer(size, static_cast<unsigned>(size), sharing), make_test_buffer(30, 1)};
    auto ticket = connection.send(std::move(message));
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    return ticket.value_or(0);
  }

  // Checks that `count` messages have arrived unchanged.
  static void expect_messages(RecordingListener& listener, std::size_t count) {
    const std::vector<Message> received = listener.wait_for_messages(count);
    ASSERT_EQ(received.size(), count);
    for (const Message& message : received) {
      const std::size_t size = std::stoul(message.header);
      ASSERT_EQ(message.buffers.size(), 2);
      ASSERT_TRUE(is_test_buffer(message.buffers[0], size, static_cast<unsigned>(size))) << size;
      ASSERT_TRUE(is_test_buffer(message.buffers[1], 30, 1));
    }
  }

  // Waits for this number of stripes. Both ends have their sockets in this process.
  bool await_stripes(int stripes) {
    return await([&] { return count_descriptors() == descriptors_ + 2 * stripes; });
  }

  std::shared_ptr<EventLoop> client_loop_;
  LoopThread client_thread_;
  std::unique_ptr<Transport> server_, client_;
  std::shared_ptr<RecordingListener> at_server_ = std::make_shared<RecordingListener>();
  std::shared_ptr<RecordingListener> at_client_ = std::make_shared<RecordingListener>();
  std::shared_ptr<Connection> from_client_, from_server_;
  int descriptors_ = 0;

  Mutex mutex_;
  std::shared_ptr<Connection> accepted_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(TcpStripes, LargeBufferOpensStripesAndLaterOnesUseThem) {
  open(striped(), striped());
  send(*from_client_, kSize);
  ASSERT_TRUE(await_stripes(kStripes));
  for (int i = 0; i < 20; ++i) {
    send(*from_client_, kSize + i);
    send(*from_client_, i + 1);
  }
  expect_messages(*at_server_, 42);
  EXPECT_TRUE(await_stripes(kStripes));
}

TEST_F(TcpStripes, LargeBufferOpensStripesEvenIfOneWasSentBeforeTheConnectionWasEstablished) {
  open(striped(), striped(), /*first=*/kSize, /*early=*/true);
  expect_messages(*at_server_, 1);
  send(*from_client_, kSize + 1);
  EXPECT_TRUE(await_stripes(kStripes));
  expect_messages(*at_server_, 2);
}

TEST_F(TcpStripes, AcceptorRequestsStripes) {
  open(striped(), striped());
  send(*from_server_, kSize);
  ASSERT_TRUE(await_stripes(kStripes));
  for (int i = 0; i < 20; ++i) send(*from_server_, kSize + i);
  expect_messages(*at_client_, 21);
}

TEST_F(TcpStripes, BothDirectionsUseStripesAtOnce) {
  constexpr int kMessages = 30;
  open(striped(), striped());
  std::thread other([this] {
    for (int i = 0; i < kMessages; ++i) send(*from_server_, kSize + 2 * i);
  });
  for (int i = 0; i < kMessages; ++i) send(*from_client_, kSize + i);
  other.join();
  expect_messages(*at_server_, 1 + kMessages);
  expect_messages(*at_client_, kMessages);
}

TEST_F(TcpStripes, EndWithoutStripesReceivesAllOnOneSocket) {
  for (const bool server_wants : {true, false}) {
    at_server_ = std::make_shared<RecordingListener>();
    at_client_ = std::make_shared<RecordingListener>();
    open(striped(server_wants ? kStripes : 0), striped(server_wants ? 0 : kStripes));
    for (int i = 0; i < 10; ++i) {
      send(*from_client_, kSize + i);
      send(*from_server_, kSize + i);
    }
    expect_messages(*at_server_, 11);
    expect_messages(*at_client_, 10);
    EXPECT_TRUE(await_stripes(0));
    TearDown();
    MutexLock lock(mutex_);
    accepted_ = nullptr;
  }
}

TEST_F(TcpStripes, IdleStripesCloseAndReopenWhenNeeded) {
  TcpOptions options = striped();
  options.stripe_idle_time = absl::Milliseconds(50);
  open(options, options);
  std::size_t sent = 1;
  for (int round = 0; round < 3; ++round) {
    // The first message may be sent before the other end has closed the stripes; then it does not reopen
    // them.
    ASSERT_TRUE(await([&] {
      send(round % 2 == 0 ? *from_client_ : *from_server_, kSize);
      return count_descriptors() == descriptors_ + 2 * kStripes;
    }));
    ASSERT_TRUE(await_stripes(0));
    send(*from_client_, 5);
    ++sent;
  }
  EXPECT_TRUE(at_client_->closed_count() == 0 && at_server_->closed_count() == 0);
}

TEST_F(TcpStripes, CaptureKeepsTheBytesOfThatMomentOnAllStripes) {
  constexpr int kMessages = 16;
  open(striped(), striped());
  send(*from_client_, kSize);
  ASSERT_TRUE(await_stripes(kStripes));
  expect_messages(*at_server_, 2);
  // The receiver does not read, so most of the following messages are still queued when they are captured.
  at_server_->hold_back();
  send(*from_client_, 1);
  for (int i = 0; i < kMessages; ++i) {
    Message message;
    const std::size_t size = kSize + i;
    message.header = std::to_string(size);
    Buffer mine = make_test_buffer(size, static_cast<unsigned>(size), Buffer::Sharing::kBorrowed);
    message.buffers = {mine, make_test_buffer(30, 1)};
    auto ticket = from_client_->send(std::move(message));
    ASSERT_TRUE(ticket.ok());
    from_client_->capture(*ticket);
    std::memset(mine.data(), 0, mine.size());
  }
  at_server_->resume();
  expect_messages(*at_server_, 3 + kMessages);
}

TEST_F(TcpStripes, FlushDeliversTheDataOnStripes) {
  open(striped(), striped());
  send(*from_client_, kSize);
  ASSERT_TRUE(await_stripes(kStripes));
  for (int i = 0; i < 10; ++i) send(*from_client_, kSize + i);
  from_client_->close(absl::CancelledError("done"), absl::Seconds(30));
  EXPECT_EQ(at_client_->wait_closed().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(at_server_->wait_closed().code(), absl::StatusCode::kUnavailable);
  expect_messages(*at_server_, 12);
}

TEST_F(TcpStripes, ClosedEndReleasesQueuedMessages) {
  open(striped(), striped());
  send(*from_client_, kSize);
  ASSERT_TRUE(await_stripes(kStripes));
  at_server_->hold_back();
  std::weak_ptr<void> owner;
  for (int i = 0; i < 20; ++i) {
    Message message;
    message.buffers = {make_test_buffer(kSize, 1)};
    owner = message.buffers[0].owner();
    ASSERT_TRUE(from_client_->send(std::move(message)).ok());
  }
  from_client_->close(absl::CancelledError("requested by the test"));
  EXPECT_FALSE(at_client_->wait_closed().ok());
  at_server_->resume();
  EXPECT_FALSE(at_server_->wait_closed().ok());
  client_->shutdown();
  EXPECT_TRUE(owner.expired());
}

}  // namespace
}  // namespace gradwire::transport
