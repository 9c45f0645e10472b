#include "gradwire/collectives/cpu/world_p2p/world_p2p.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/collectives/cpu/world_p2p/world_p2p_test_world.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

INSTANTIATE_TEST_SUITE_P(Transports, WorldP2pTest, ::testing::Values("shm", "tcp", "default"),
                         [](const auto& info) { return info.param; });

TEST_P(WorldP2pTest, MessagesOfEverySizeArriveWholeWhicheverComesFirst) {
  // With these values all messages, some, or only the longest use the rendezvous protocol.
  for (const std::size_t eager_bytes : {std::size_t{0}, kEager, std::size_t{2} << 20}) {
    World world(2, transports(), eager_bytes);
    for (const std::size_t size :
         {0ul, 1ul, 7ul, 4096ul, 4097ul, kEager, kEager + 1, 1ul << 20, (8ul << 20) + 5}) {
      for (const bool receive_first : {true, false}) {
        std::string sent = bytes(size, static_cast<unsigned>(size));
        std::string received(size, 'x');
        Future<int> receive;
        Future<void> send;
        if (receive_first) receive = world[1].receive(0, kChannel, 1, span(received), timeout());
        send = world[0].send(1, kChannel, 1, span(sent), timeout());
        if (!receive_first) receive = world[1].receive(0, kChannel, 1, span(received), timeout());
        EXPECT_TRUE(send.result().ok()) << send.result();
        std::memset(sent.data(), 0, sent.size());  // The caller may reuse the memory.
        ASSERT_TRUE(receive.result().ok()) << receive.result().status();
        EXPECT_EQ(*receive.result(), 0);
        EXPECT_EQ(received, bytes(size, static_cast<unsigned>(size))) << size;
      }
    }
  }
}

TEST_P(WorldP2pTest, SendReceiveInBothDirectionsAtOnce) {
  World world(2, transports());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&world, rank] {
      for (int i = 0; i < 100; ++i) {
        const std::size_t size = i % 3 == 0 ? 200'000 : 8;
        std::string sent = bytes(size, static_cast<unsigned>(i + rank));
        std::string received(size, 'x');
        Future<int> receive = world[rank].receive(1 - rank, kChannel, i, span(received), timeout());
        Future<void> send = world[rank].send(1 - rank, kChannel, i, span(sent), timeout());
        ASSERT_TRUE(receive.result().ok()) << receive.result().status();
        ASSERT_TRUE(send.result().ok()) << send.result();
        EXPECT_EQ(received, bytes(size, static_cast<unsigned>(i + 1 - rank)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(WorldP2pTest, AnySourceReturnsTheSender) {
  World world(4, transports());
  std::vector<std::string> sent = {"0", "1", "2", "3"};
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(world[rank]
                    .send(0, kChannel, 5, span(sent[static_cast<std::size_t>(rank)]), timeout())
                    .result()
                    .ok());
  }
  std::string all;
  for (int i = 0; i < 4; ++i) {
    std::string received(1, 'x');
    const absl::StatusOr<int> from =
        world[0].receive(kAnyRank, kChannel, 5, span(received), timeout()).result();
    ASSERT_TRUE(from.ok()) << from.status();
    EXPECT_EQ(received, std::to_string(*from));
    all += received;
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, "0123");
}

// Several threads send, each with its own tag. The messages of each thread are received in order, short and
// long.
TEST_P(WorldP2pTest, MessagesAreNotOvertaken) {
  constexpr int kThreads = 3;
  constexpr int kMessages = 60;
  World world(2, transports());
  std::vector<std::thread> threads;
  for (int tag = 0; tag < kThreads; ++tag) {
    threads.emplace_back([&world, tag] {
      std::vector<std::string> sent;
      std::vector<Future<void>> sends;
      for (int i = 0; i < kMessages; ++i)
        sent.push_back(bytes(100'000 * (i % 2) + 8, static_cast<unsigned>(i + tag)));
      for (std::string& message : sent)
        sends.push_back(world[0].send(1, kChannel, tag, span(message), timeout()));
      for (const Future<void>& send : sends) EXPECT_TRUE(send.result().ok()) << send.result();
    });
    threads.emplace_back([&world, tag] {
      for (int i = 0; i < kMessages; ++i) {
        std::string received(static_cast<std::size_t>(100'000 * (i % 2) + 8), 'x');
        ASSERT_TRUE(world[1].receive(0, kChannel, tag, span(received), timeout()).result().ok());
        ASSERT_EQ(received, bytes(received.size(), static_cast<unsigned>(i + tag)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(WorldP2pTest, ManyUnreceivedMessagesWaitAndArrive) {
  constexpr int kMessages = 600;  // More than fit the window.
  World world(2, transports());
  std::vector<std::string> sent;
  for (int i = 0; i < kMessages; ++i) sent.push_back(bytes(kEager, static_cast<unsigned>(i)));
  std::vector<Future<void>> sends;
  for (std::string& message : sent) sends.push_back(world[0].send(1, kChannel, 0, span(message), timeout()));
  EXPECT_FALSE(sends.back().wait_for(absl::Milliseconds(50)));
  for (int i = 0; i < kMessages; ++i) {
    std::string received(kEager, 'x');
    ASSERT_TRUE(world[1].receive(0, kChannel, 0, span(received), timeout()).result().ok());
    ASSERT_EQ(received, sent[static_cast<std::size_t>(i)]);
  }
  for (const Future<void>& send : sends) EXPECT_TRUE(send.result().ok()) << send.result();
  // The window has room again.
  EXPECT_TRUE(world[0].send(1, kChannel, 0, span(sent[0]), timeout()).wait_for(absl::Seconds(30)));
}

TEST_P(WorldP2pTest, SelfSendWorks) {
  World world(1, transports());
  for (const std::size_t size : {0ul, 5ul, kEager, kEager + 1, 1ul << 20}) {
    std::string sent = bytes(size, 1);
    std::string received(size, 'x');
    Future<void> send = world[0].send(0, kChannel, 0, span(sent), timeout());
    EXPECT_EQ(send.done(), size <= kEager);
    EXPECT_EQ(world[0].receive(kAnyRank, kChannel, 0, span(received), timeout()).result().value_or(-1), 0);
    EXPECT_TRUE(send.result().ok()) << send.result();
    EXPECT_EQ(received, sent);
  }
  std::string sent = bytes(kEager + 1, 1);
  Future<void> late = world[0].send(0, kChannel, 0, span(sent), in(absl::Milliseconds(20)));
  EXPECT_EQ(late.result().code(), absl::StatusCode::kDeadlineExceeded);
  Future<void> refused = world[0].send(0, kChannel, 0, span(sent), timeout());
  std::string small(2, 'x');
  EXPECT_EQ(world[0].receive(0, kChannel, 0, span(small), timeout()).result().status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.result().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(WorldP2pTest, MessagesWaitForARankThatStartsLater) {
  World world(0, transports());
  world.ends.push_back(world.make(0, 2, transports(), kEager));
  std::string sent = "a";
  std::string received(1, 'x');
  Future<void> send = world[0].send(1, kChannel, 0, span(sent), timeout());
  Future<void> late = world[0].send(1, kChannel, 0, span(sent), in(absl::Milliseconds(20)));
  EXPECT_EQ(late.result().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(send.done());
  // The thread that finds the connection sends it, and must not wait for the transport.
  std::string longer(40'000, 'a');
  std::string longer_received(40'000, 'x');
  Future<void> copied = world[0].send(1, kChannel, 1, span(longer), timeout());
  world.ends.push_back(world.make(1, 2, transports(), kEager));
  EXPECT_TRUE(send.result().ok());
  EXPECT_TRUE(copied.result().ok());
  longer.assign(longer.size(), 'b');
  EXPECT_TRUE(world[1].receive(0, kChannel, 0, span(received), timeout()).result().ok());
  EXPECT_TRUE(world[1].receive(0, kChannel, 1, span(longer_received), timeout()).result().ok());
  EXPECT_EQ(longer_received, std::string(40'000, 'a'));
}

}  // namespace
}  // namespace gradwire::collectives::cpu
