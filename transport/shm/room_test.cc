// Tests the race between a writer that finds the ring full and a reader that makes room at that moment
// (transport/shm/memory/ring.h).

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "gradwire/base/clock.h"
#include "gradwire/base/polling/spin_wait.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/shm/raw_peer.h"
#include "gradwire/transport/shm/shm_transport.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

constexpr uint64_t kLines = kMinRingBytes / kLineBytes;
constexpr int kRounds = 5'000;
// Time limit: on a machine where the two threads share a core, rounds take long and fewer of them are run.
constexpr absl::Duration kEnough = absl::Seconds(60);

void spin_until(const std::function<bool()>& condition) {
  for (int i = 1; !condition(); ++i) {
    if (i % 200 == 0) {
      std::this_thread::yield();
    } else {
      cpu_relax();
    }
  }
}

// A connection whose loop is driven only by the test, so only a doorbell makes it check the ring again.
class ShmRoom : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loop = EventLoop::create();
    ASSERT_TRUE(loop.ok()) << loop.status();
    loop_ = *loop;
    ShmOptions options;
    options.ring_bytes = kMinRingBytes;
    transport_ = make_shm_transport(options, loop_);
    auto address = transport_->listen([this](const std::shared_ptr<Connection>& connection) {
      connection_ = connection;
      return std::make_shared<RecordingListener>();
    });
    ASSERT_TRUE(address.ok()) << address.status();
    peer_ = std::make_unique<RawPeer>(*address);
    peer_->send_hello(kMinRingBytes, 0);
    ASSERT_TRUE(drive_until([this] { return connection_ != nullptr; }));
    ASSERT_TRUE(peer_->wait_and_receive());
    ASSERT_GT(peer_->other_ring().size(), 0);
  }

  void TearDown() override {
    connection_.reset();
    transport_->shutdown();
    // A task that the connection has deferred holds it, and the connection holds the loop.
    end(*loop_);
  }

  bool drive_until(const std::function<bool()>& condition) {
    const absl::Time deadline = Clock::system().now() + kTestTimeout;
    while (!condition() && Clock::system().now() < deadline) {
      if (!loop_->try_enter()) continue;
      loop_->poll();
      loop_->leave();
    }
    return condition();
  }

  // Sends a record of one line.
  void send_one() {
    Message message;
    message.header.assign(40, 'x');
    ASSERT_TRUE(connection_->send(std::move(message)).ok());
  }

  char* ring() const { return peer_->other_ring().data(); }
  std::atomic_ref<uint64_t> word(uint64_t line) const {
    return shared_word<uint64_t>(ring() + kLinesOffset + line % kLines * kLineBytes);
  }
  void store_tail(uint64_t tail) const { shared_word<uint64_t>(ring() + kTailOffset).store(tail); }
  std::atomic_ref<uint32_t> room() const { return shared_word<uint32_t>(ring() + kRoomOffset); }

  std::shared_ptr<EventLoop> loop_;
  std::unique_ptr<Transport> transport_;
  std::shared_ptr<Connection> connection_;
  std::unique_ptr<RawPeer> peer_;
};

// The reader empties the ring, each time at another moment after the ring became full. If a writer asked for
// room without checking again, it would miss room that the reader made between the check and the request, and
// the reader would not see the request.
TEST_F(ShmRoom, WriterOfAFullRingFindsTheRoomOrItsRequestIsSeen) {
  std::atomic<int> begun{-1};
  std::atomic<int> read{-1};
  std::atomic<bool> over{false};
  bool asked = false;
  uint64_t position = 0;
  std::thread reader([&] {
    std::mt19937 random(1);
    for (int round = 0; round < kRounds; ++round) {
      spin_until([&] { return begun.load() >= round || over.load(); });
      if (over.load()) return;
      for (uint64_t line = position; line < position + kLines; ++line) {
        spin_until([&] { return word(line).load() != 0; });
        word(line).store(0);
      }
      for (unsigned wait = random() % 200; wait > 0; --wait) asm volatile("" ::: "memory");
      store_tail(position + kLines);
      full_fence();
      asked = room().load() != 0;
      read.store(round);
    }
  });
  int found = 0, rung = 0, lost = 0;
  int rounds = 0;
  const absl::Time enough = Clock::system().now() + kEnough;
  for (; rounds < kRounds && Clock::system().now() < enough; ++rounds) {
    const int round = rounds;
    room().store(0);
    begun.store(round);
    // Send one record more than fits.
    for (uint64_t i = 0; i <= kLines; ++i) send_one();
    spin_until([&] { return read.load() >= round; });
    const uint64_t last = position + kLines;
    const bool was_written = word(last).load() != 0;
    ++(was_written ? found : asked ? rung : lost);
    peer_->ring();
    ASSERT_TRUE(drive_until([&] { return word(last).load() != 0; }));
    word(last).store(0);
    position = last + 1;
    store_tail(position);
  }
  over = true;
  reader.join();
  EXPECT_EQ(lost, 0) << found << " found the room, " << rung << " were seen asking";
  EXPECT_EQ(found + rung, rounds);
}

}  // namespace
}  // namespace gradwire::transport
