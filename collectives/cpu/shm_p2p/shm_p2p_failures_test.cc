#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "gradwire/collectives/cpu/shm_p2p/shm_p2p_test_group.h"
#include "gradwire/store/file_store.h"

namespace gradwire::collectives::cpu {
namespace {

TEST(ShmP2p, DeadlinesNameTheRank) {
  Members group(2);
  std::string data(1, 'x');
  std::string large(kEager + 1, 'x');
  const Future<int> receive = group[0].receive(1, 0, span(data), in(absl::Milliseconds(30)));
  EXPECT_EQ(receive.result().status(),
            absl::DeadlineExceededError("timed out: no message (tag 0) arrived from rank 1"));
  // No thread waits for it.
  const Future<void> send = group[0].send(1, 0, span(large), in(absl::Milliseconds(30)));
  const absl::Time late = timeout();
  while (!send.done() && Clock::system().now() < late) std::this_thread::yield();
  EXPECT_EQ(send.result(), absl::DeadlineExceededError(
                               "timed out: rank 1 has not received a message of 65537 bytes (tag 0)"));
  // The message that timed out is not received; a later one is.
  EXPECT_TRUE(group[0].send(1, 0, span(data), timeout()).result().ok());
  std::string received(1, ' ');
  EXPECT_TRUE(group[1].receive(0, 0, span(received), timeout()).result().ok());
}

TEST(ShmP2p, RankMayLeaveInAContinuationOnTheGroupsThread) {
  Members group(2);
  std::string received(1, ' ');
  std::atomic<bool> has_left{false};
  std::thread::id left_on;
  // No thread waits for it and there is no executor, so it completes and continues on the group's thread.
  group[0].receive(1, 0, span(received), timeout()).on_ready_inline([&](const absl::StatusOr<int>& from) {
    EXPECT_TRUE(from.ok()) << from.status();
    left_on = std::this_thread::get_id();
    group.endpoints[0].reset();
    has_left = true;
  });
  std::string data(1, 'x');
  EXPECT_TRUE(group[1].send(0, 0, span(data), timeout()).result().ok());
  const absl::Time late = timeout();
  while (!has_left && Clock::system().now() < late) std::this_thread::yield();
  ASSERT_TRUE(has_left);
  EXPECT_NE(left_on, std::this_thread::get_id());
  EXPECT_EQ(received, "x");
  // The other rank is informed.
  const absl::Status gone = group[1].receive(0, 0, span(data), timeout()).result().status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable) << gone;
}

TEST(ShmP2p, CancelReleasesTheMemoryAtOnce) {
  Members group(2);
  for (int i = 0; i < 40; ++i) {
    const std::size_t size = i % 2 == 0 ? kEager : std::size_t{3} << 20;
    auto data = std::make_unique<std::string>(size, 'x');
    auto into = std::make_unique<std::string>(size, 'x');
    const Future<int> receive = group[1].receive(0, i, span(*into), timeout());
    const Future<void> send = group[0].send(1, i, span(*data), timeout());
    std::thread canceller([&] {
      receive.cancel();
      into.reset();
    });
    send.cancel();
    data.reset();
    canceller.join();
  }
  std::string data(1, 'x');
  EXPECT_TRUE(group[0].send(1, 99, span(data), timeout()).result().ok());
  EXPECT_TRUE(group[1].receive(0, 99, span(data), timeout()).result().ok());
}

TEST(ShmP2p, AnotherSizeFailsAndNamesBothSizes) {
  Members group(2);
  std::string sent(kEager + 1, 'x');
  std::string received(7, 'x');
  const Future<void> send = group[0].send(1, 0, span(sent), timeout());
  const absl::Status large = group[1].receive(0, 0, span(received), timeout()).result().status();
  EXPECT_EQ(large, absl::InvalidArgumentError(
                       "message size mismatch: got 65537 bytes from rank 0 (tag 0), expected 7"));
  EXPECT_EQ(send.result().code(), absl::StatusCode::kInvalidArgument) << send.result();
  for (const std::size_t size : {std::size_t{3}, std::size_t{20'000}, kEager}) {
    std::string other(size, 'x');
    EXPECT_TRUE(group[0].send(1, 0, span(other), timeout()).result().ok());
    EXPECT_EQ(group[1].receive(0, 0, span(received), timeout()).result().status().code(),
              absl::StatusCode::kInvalidArgument);
    // The same if the receive is posted first.
    const Future<int> waiting = group[1].receive(0, 0, span(received), timeout());
    EXPECT_TRUE(group[0].send(1, 0, span(other), timeout()).result().ok());
    EXPECT_EQ(waiting.result().status().code(), absl::StatusCode::kInvalidArgument);
  }
  received.assign(7, 'x');
  EXPECT_TRUE(group[0].send(1, 0, span(received), timeout()).result().ok());
  EXPECT_TRUE(group[1].receive(0, 0, span(received), timeout()).result().ok());
}

TEST(ShmP2p, MessagesOfARankThatLeftCanBeReceived) {
  Members group(3);
  std::string sent = "a";
  std::string longer = bytes(kEager, 3);
  std::string received(1, 'x');
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(group[2].send(0, i, span(sent), timeout()).result().ok());
  EXPECT_TRUE(group[2].send(0, 50, span(longer), timeout()).result().ok());
  const Future<int> waiting = group[0].receive(2, 77, span(received), timeout());
  std::string large(kEager + 1, 'x');
  const Future<void> announced = group[0].send(2, 0, span(large), timeout());
  group.endpoints[2] = nullptr;
  EXPECT_EQ(waiting.result().status(), absl::UnavailableError("rank 2 has left"));
  EXPECT_EQ(announced.result(), absl::UnavailableError("rank 2 has left"));
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(group[0].receive(2, i, span(received), timeout()).result().value_or(-1), 2);
  std::string into(kEager, 'x');
  EXPECT_EQ(group[0].receive(2, 50, span(into), timeout()).result().value_or(-1), 2);
  EXPECT_EQ(into, longer);
  EXPECT_EQ(group[0].receive(2, 0, span(received), timeout()).result().status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(group[0].send(2, 0, span(sent), timeout()).result().code(), absl::StatusCode::kUnavailable);
  // The other ranks continue.
  EXPECT_TRUE(group[0].send(1, 0, span(sent), timeout()).result().ok());
  EXPECT_TRUE(group[1].receive(0, 0, span(received), timeout()).result().ok());
}

TEST(ShmP2p, AbortEndsOperationsOfTheRank) {
  Members group(2);
  std::string large(kEager + 1, 'x');
  std::string data(1, 'x');
  const Future<int> receive = group[0].receive(1, 0, span(data), timeout());
  const Future<void> send = group[0].send(1, 0, span(large), timeout());
  group[0].abort(absl::AbortedError("requested by the test"));
  group[0].abort(absl::AbortedError("requested again by the test"));
  EXPECT_EQ(receive.result().status(), absl::AbortedError("requested by the test"));
  EXPECT_EQ(send.result(), absl::AbortedError("requested by the test"));
  EXPECT_EQ(group[0].receive(1, 0, span(data), timeout()).result().status(),
            absl::AbortedError("requested by the test"));
  EXPECT_EQ(group[0].send(1, 0, span(data), timeout()).result(), absl::AbortedError("requested by the test"));
  // A sender of an RTS is informed. Eager messages are dropped and take no room.
  EXPECT_EQ(group[1].send(0, 0, span(large), timeout()).result().code(), absl::StatusCode::kAborted);
  std::string longer = bytes(kEager, 1);
  for (int i = 0; i < 600; ++i) {
    const absl::Status sent = group[1].send(0, 0, span(longer), timeout()).result();
    EXPECT_TRUE(sent.ok() || absl::IsAborted(sent)) << sent;
  }
}

TEST(ShmP2p, LeavingCancelsOperations) {
  Members group(2);
  std::string large(kEager + 1, 'x');
  std::string data(1, 'x');
  const Future<int> receive = group[0].receive(1, 0, span(data), timeout());
  const Future<void> send = group[0].send(1, 0, span(large), timeout());
  group.endpoints[0] = nullptr;
  EXPECT_EQ(receive.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(send.result().code(), absl::StatusCode::kCancelled);
}

// A killed process is noticed long before the deadline of a minute, whether or not a thread waits.
TEST(ShmP2p, KilledProcessIsNoticed) {
  const std::string path = testing::TempDir() + "/shm_store_" + std::to_string(::getpid());
  const pid_t child = ::fork();
  if (child == 0) {
    // The child uses only memory of the parent: there were no threads yet.
    const auto joined =
        ShmP2p::join({.rank = 1, .size = 2, .store = std::make_shared<store::FileStore>(path, 2)});
    std::string data = "b";
    if (joined.ok() && (*joined)->send(0, 1, span(data), timeout()).result().ok()) ::pause();
    ::_exit(1);
  }
  const auto joined =
      ShmP2p::join({.rank = 0, .size = 2, .store = std::make_shared<store::FileStore>(path, 2)});
  ASSERT_TRUE(joined.ok()) << joined.status();
  std::string data(1, 'x');
  EXPECT_EQ((*joined)->receive(1, 1, span(data), timeout()).result().value_or(-1), 1);
  EXPECT_EQ(data, "b");
  const Future<int> waiting = (*joined)->receive(1, 0, span(data), timeout());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const absl::Time killed = Clock::system().now();
  while (!waiting.done() && Clock::system().now() < killed + absl::Seconds(30)) std::this_thread::yield();
  EXPECT_LT(Clock::system().now() - killed, absl::Seconds(20));
  EXPECT_EQ(waiting.result().status(), absl::UnavailableError("rank 1 is lost: its process has ended"));
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace gradwire::collectives::cpu
