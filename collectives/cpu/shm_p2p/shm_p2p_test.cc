#include "gradwire/collectives/cpu/shm_p2p/shm_p2p.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "gradwire/collectives/cpu/shm_p2p/shm_p2p_test_group.h"

namespace gradwire::collectives::cpu {
namespace {

TEST(ShmP2p, MessagesOfEverySizeArriveWholeWhicheverComesFirst) {
  Members group(2);
  for (const std::size_t size : {0ul, 1ul, 40ul, 41ul, 4096ul, 8192ul, 8193ul, 16384ul, 16385ul, kEager,
                                 kEager + 1, 1ul << 20, (8ul << 20) + 5}) {
    for (const bool receive_first : {true, false}) {
      std::string sent = bytes(size, static_cast<unsigned>(size));
      std::string received(size, 'x');
      Future<int> receive;
      if (receive_first) receive = group[1].receive(0, 1, span(received), timeout());
      const Future<void> send = group[0].send(1, 1, span(sent), timeout());
      if (!receive_first) {
        EXPECT_TRUE(size > kEager || send.done()) << size;
        receive = group[1].receive(0, 1, span(received), timeout());
      }
      EXPECT_TRUE(send.result().ok()) << send.result();
      std::memset(sent.data(), 0, sent.size());  // The caller may reuse the memory.
      ASSERT_TRUE(receive.result().ok()) << receive.result().status();
      EXPECT_EQ(*receive.result(), 0);
      EXPECT_EQ(received, bytes(size, static_cast<unsigned>(size))) << size;
    }
  }
}

TEST(ShmP2p, TryReceiveTakesTheHeadOfTheRing) {
  Members group(2);
  std::string sent = bytes(8, 1);
  std::string received(8, 'x');
  EXPECT_FALSE(group[1].try_receive(0, 5, span(received)).has_value());
  ASSERT_EQ(group[0].try_send(1, 5, span(sent)), absl::OkStatus());
  ASSERT_EQ(group[0].try_send(1, 6, span(sent)), absl::OkStatus());
  // Not the tag or the size of the message at the head.
  EXPECT_FALSE(group[1].try_receive(0, 6, span(received)).has_value());
  EXPECT_FALSE(group[1].try_receive(0, 5, {received.data(), 4}).has_value());
  const auto from = group[1].try_receive(0, 5, span(received));
  ASSERT_TRUE(from.has_value() && from->ok());
  EXPECT_EQ(**from, 0);
  EXPECT_EQ(received, sent);
  // Nor while another receive is posted, which is older.
  received.assign(8, 'x');
  std::string first(8, 'x');
  const Future<int> posted = group[1].receive(kAnyMember, 7, span(first), timeout());
  EXPECT_FALSE(group[1].try_receive(0, 7, span(received)).has_value());
  ASSERT_EQ(group[0].try_send(1, 7, span(sent)), absl::OkStatus());
  EXPECT_TRUE(posted.result().ok());
  EXPECT_EQ(first, sent);
  // A long message cannot be sent by try_send().
  std::string large(kEager + 1, 'x');
  EXPECT_FALSE(group[0].try_send(1, 0, span(large)).has_value());
}

TEST(ShmP2p, SendReceiveInBothDirectionsAtOnce) {
  Members group(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&group, rank] {
      for (int i = 0; i < 300; ++i) {
        const std::size_t size = i % 3 == 0 ? 700'000 : i % 3 == 1 ? 8 : 5'000;
        std::string sent = bytes(size, static_cast<unsigned>(i + rank));
        std::string received(size, 'x');
        const Future<void> send = group[rank].send(1 - rank, i, span(sent), timeout());
        if (!group[rank].try_receive(1 - rank, i, span(received)).has_value()) {
          const Future<int> receive = group[rank].receive(1 - rank, i, span(received), timeout());
          ASSERT_TRUE(receive.result().ok()) << receive.result().status();
        }
        ASSERT_TRUE(send.result().ok()) << send.result();
        ASSERT_EQ(received, bytes(size, static_cast<unsigned>(i + 1 - rank)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// try_receive() may run at any moment relative to the sends.
TEST(ShmP2p, ShortMessagesInBothDirectionsAreReceivedOnce) {
  Members group(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&group, rank] {
      for (uint64_t i = 1; i <= 50'000; ++i) {
        uint64_t out = i * 2 + static_cast<uint64_t>(rank);
        uint64_t in = 0;
        if (!group[rank].try_send(1 - rank, 0, {&out, sizeof(out)}).has_value()) {
          ASSERT_TRUE(group[rank].send(1 - rank, 0, {&out, sizeof(out)}, timeout()).result().ok());
        }
        if (!group[rank].try_receive(1 - rank, 0, {&in, sizeof(in)}).has_value()) {
          ASSERT_TRUE(group[rank].receive(1 - rank, 0, {&in, sizeof(in)}, timeout()).result().ok());
        }
        ASSERT_EQ(in, i * 2 + static_cast<uint64_t>(1 - rank));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ShmP2p, AnySourceReturnsTheSender) {
  Members group(4);
  std::vector<std::string> sent = {"0", "1", "2", "3"};
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(group[rank].send(0, 5, span(sent[static_cast<std::size_t>(rank)]), timeout()).result().ok());
  }
  std::string all;
  for (int i = 0; i < 4; ++i) {
    std::string received(1, 'x');
    const absl::StatusOr<int> from = group[0].receive(kAnyMember, 5, span(received), timeout()).result();
    ASSERT_TRUE(from.ok()) << from.status();
    EXPECT_EQ(received, std::to_string(*from));
    all += received;
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, "0123");
}

// Several threads send, each with its own tag. The messages of each thread are received in order, short and
// long.
TEST(ShmP2p, MessagesAreNotOvertaken) {
  constexpr int kThreads = 3;
  constexpr int kMessages = 90;
  const auto size_of = [](int i) { return std::vector<std::size_t>{8, 30'000, 100'000}[i % 3]; };
  Members group(2);
  std::vector<std::thread> threads;
  for (int tag = 0; tag < kThreads; ++tag) {
    threads.emplace_back([&, tag] {
      std::vector<std::string> sent;
      std::vector<Future<void>> sends;
      for (int i = 0; i < kMessages; ++i) sent.push_back(bytes(size_of(i), static_cast<unsigned>(i + tag)));
      for (std::string& message : sent) sends.push_back(group[0].send(1, tag, span(message), timeout()));
      for (const Future<void>& send : sends) EXPECT_TRUE(send.result().ok()) << send.result();
    });
    threads.emplace_back([&, tag] {
      for (int i = 0; i < kMessages; ++i) {
        std::string received(size_of(i), 'x');
        if (!group[1].try_receive(0, tag, span(received)).has_value()) {
          ASSERT_TRUE(group[1].receive(0, tag, span(received), timeout()).result().ok());
        }
        ASSERT_EQ(received, bytes(received.size(), static_cast<unsigned>(i + tag)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Short messages are sent up to the window, although their receiver does nothing.
TEST(ShmP2p, ManyUnreceivedMessagesWaitAndArrive) {
  // Five thousand messages, received one by one, take long on a busy machine.
  const absl::Time late = in(absl::Minutes(4));
  for (const std::size_t size : {std::size_t{8000}, kEager}) {
    const int messages = static_cast<int>((std::size_t{40} << 20) / size);  // More than fit the window.
    Members group(2);
    std::vector<std::string> sent;
    for (int i = 0; i < messages; ++i) sent.push_back(bytes(size, static_cast<unsigned>(i)));
    std::vector<Future<void>> sends;
    for (std::string& message : sent) sends.push_back(group[0].send(1, 0, span(message), late));
    EXPECT_TRUE(sends[static_cast<std::size_t>(messages / 4)].wait_for(absl::Seconds(30)));
    EXPECT_FALSE(sends.back().wait_for(absl::Milliseconds(50)));
    for (int i = 0; i < messages; ++i) {
      std::string received(size, 'x');
      ASSERT_TRUE(group[1].receive(0, 0, span(received), late).result().ok());
      ASSERT_EQ(received, sent[static_cast<std::size_t>(i)]);
    }
    for (const Future<void>& send : sends) EXPECT_TRUE(send.result().ok()) << send.result();
    // The window has room again.
    EXPECT_TRUE(group[0].send(1, 0, span(sent[0]), timeout()).wait_for(absl::Seconds(30)));
  }
}

// No thread waits: the group's threads do all the work.
TEST(ShmP2p, OperationsCompleteWithoutWaitingThread) {
  Members group(3);
  for (const std::size_t size : {8ul, 20'000ul, 3ul << 20}) {
    std::string sent = bytes(size, 1);
    std::string received(size, 'x');
    std::atomic<int> ends{0};
    group[1].receive(0, 2, span(received), timeout()).on_ready_inline([&](const auto& from) {
      EXPECT_TRUE(from.ok()) << from.status();
      ends.fetch_add(1);
    });
    group[0].send(1, 2, span(sent), timeout()).on_ready_inline([&](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      ends.fetch_add(1);
    });
    const absl::Time late = timeout();
    while (ends.load() < 2 && Clock::system().now() < late) std::this_thread::yield();
    ASSERT_EQ(ends.load(), 2);
    EXPECT_EQ(received, sent);
  }
}

TEST(ShmP2p, SelfSendWorks) {
  Members group(2);
  for (const std::size_t size : {0ul, 5ul, kEager, kEager + 1, 1ul << 20}) {
    std::string sent = bytes(size, 1);
    std::string received(size, 'x');
    const Future<void> send = group[0].send(0, 0, span(sent), timeout());
    EXPECT_EQ(send.done(), size <= kEager);
    EXPECT_EQ(group[0].receive(kAnyMember, 0, span(received), timeout()).result().value_or(-1), 0);
    EXPECT_TRUE(send.result().ok()) << send.result();
    EXPECT_EQ(received, sent);
  }
  std::string sent = bytes(kEager + 1, 1);
  const Future<void> late = group[0].send(0, 0, span(sent), in(absl::Milliseconds(20)));
  EXPECT_EQ(late.result().code(), absl::StatusCode::kDeadlineExceeded);
  const Future<void> refused = group[0].send(0, 0, span(sent), timeout());
  std::string small(2, 'x');
  EXPECT_EQ(group[0].receive(0, 0, span(small), timeout()).result().status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.result().code(), absl::StatusCode::kInvalidArgument);
}

// More ranks than cores; each rank sends to the next, synchronously.
TEST(ShmP2p, MoreRanksThanCoresMakeProgress) {
  constexpr int kRanks = 6;
  Members group(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      for (int i = 0; i < 200; ++i) {
        std::string sent = bytes(100, static_cast<unsigned>(i + rank));
        std::string received(100, 'x');
        const int from = (rank + kRanks - 1) % kRanks;
        ASSERT_EQ(group[rank].try_send((rank + 1) % kRanks, i, span(sent)), absl::OkStatus());
        if (!group[rank].try_receive(from, i, span(received)).has_value()) {
          ASSERT_EQ(group[rank].receive(from, i, span(received), timeout()).result().value_or(-1), from);
        }
        ASSERT_EQ(received, bytes(100, static_cast<unsigned>(i + from)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gradwire::collectives::cpu
