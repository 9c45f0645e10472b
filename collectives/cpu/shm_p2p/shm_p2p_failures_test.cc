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
            absl::DeadlineExceededError("no message (tag 0) has come from rank 1 in time"));
  // Nobody waits for it.
  const Future<void> send = group[0].send(1, 0, span(large), in(absl::Milliseconds(30)));
  const absl::Time late = timeout();
  while (!send.done() && Clock::system().now() < late) std::this_thread::yield();
  EXPECT_EQ(send.result(),
            absl::DeadlineExceededError("rank 1 has not taken a message of 65537 bytes (tag 0) in time"));
  // What was taken back is not received; what comes later is.
  EXPECT_TRUE(group[0].send(1, 0, span(data), timeout()).result().ok());
  std::string received(1, ' ');
  EXPECT_TRUE(group[1].receive(0, 0, span(received), timeout()).result().ok());
}

TEST(ShmP2p, ARankMayLeaveFromAContinuationOnTheGroupsThread) {
  Members group(2);
  std::string received(1, ' ');
  std::atomic<bool> has_left{false};
  std::thread::id left_on;
  // Nobody waits for it, and there is no executor: it ends, and continues, on the group's thread.
  group[0].receive(1, 0, span(received), timeout()).on_ready_inline([&](const absl::StatusOr<int>& from) {
    EXPECT_TRUE(from.ok()) << from.status();
    left_on = std::this_thread::get_id();
    group.rings[0].reset();
    has_left = true;
  });
  std::string data(1, 'x');
  EXPECT_TRUE(group[1].send(0, 0, span(data), timeout()).result().ok());
  const absl::Time late = timeout();
  while (!has_left && Clock::system().now() < late) std::this_thread::yield();
  ASSERT_TRUE(has_left);
  EXPECT_NE(left_on, std::this_thread::get_id());
  EXPECT_EQ(received, "x");
  // The other rank hears of it.
  const absl::Status gone = group[1].receive(0, 0, span(data), timeout()).result().status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable) << gone;
}

TEST(ShmP2p, CancelGivesTheMemoryBackAtOnce) {
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
                       "a message of 65537 bytes came from rank 0 (tag 0) for a receive of 7 bytes"));
  EXPECT_EQ(send.result().code(), absl::StatusCode::kInvalidArgument) << send.result();
  for (const std::size_t size : {std::size_t{3}, std::size_t{20'000}, kEager}) {
    std::string other(size, 'x');
    EXPECT_TRUE(group[0].send(1, 0, span(other), timeout()).result().ok());
    EXPECT_EQ(group[1].receive(0, 0, span(received), timeout()).result().status().code(),
              absl::StatusCode::kInvalidArgument);
    // And where the receive comes first.
    const Future<int> waiting = group[1].receive(0, 0, span(received), timeout());
    EXPECT_TRUE(group[0].send(1, 0, span(other), timeout()).result().ok());
    EXPECT_EQ(waiting.result().status().code(), absl::StatusCode::kInvalidArgument);
  }
  received.assign(7, 'x');
  EXPECT_TRUE(group[0].send(1, 0, span(received), timeout()).result().ok());
  EXPECT_TRUE(group[1].receive(0, 0, span(received), timeout()).result().ok());
}

TEST(ShmP2p, RankThatLeavesIsLostAndWhatItSentCanBeReceived) {
  Members group(3);
  std::string sent = "a";
  std::string longer = bytes(kEager, 3);
  std::string received(1, 'x');
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(group[2].send(0, i, span(sent), timeout()).result().ok());
  EXPECT_TRUE(group[2].send(0, 50, span(longer), timeout()).result().ok());
  const Future<int> waiting = group[0].receive(2, 77, span(received), timeout());
  std::string large(kEager + 1, 'x');
  const Future<void> announced = group[0].send(2, 0, span(large), timeout());
  group.rings[2] = nullptr;
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
  // The others go on.
  EXPECT_TRUE(group[0].send(1, 0, span(sent), timeout()).result().ok());
  EXPECT_TRUE(group[1].receive(0, 0, span(received), timeout()).result().ok());
}

TEST(ShmP2p, AbortEndsWhatIsHere) {
  Members group(2);
  std::string large(kEager + 1, 'x');
  std::string data(1, 'x');
  const Future<int> receive = group[0].receive(1, 0, span(data), timeout());
  const Future<void> send = group[0].send(1, 0, span(large), timeout());
  group[0].abort(absl::AbortedError("enough"));
  group[0].abort(absl::AbortedError("more than enough"));
  EXPECT_EQ(receive.result().status(), absl::AbortedError("enough"));
  EXPECT_EQ(send.result(), absl::AbortedError("enough"));
  EXPECT_EQ(group[0].receive(1, 0, span(data), timeout()).result().status(), absl::AbortedError("enough"));
  EXPECT_EQ(group[0].send(1, 0, span(data), timeout()).result(), absl::AbortedError("enough"));
  // Who announces to it hears of it; what comes without that takes no room.
  EXPECT_EQ(group[1].send(0, 0, span(large), timeout()).result().code(), absl::StatusCode::kAborted);
  std::string longer = bytes(kEager, 1);
  for (int i = 0; i < 600; ++i) {
    const absl::Status sent = group[1].send(0, 0, span(longer), timeout()).result();
    EXPECT_TRUE(sent.ok() || absl::IsAborted(sent)) << sent;
  }
}

TEST(ShmP2p, LeavingEndsWhatIsUnderWay) {
  Members group(2);
  std::string large(kEager + 1, 'x');
  std::string data(1, 'x');
  const Future<int> receive = group[0].receive(1, 0, span(data), timeout());
  const Future<void> send = group[0].send(1, 0, span(large), timeout());
  group.rings[0] = nullptr;
  EXPECT_EQ(receive.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(send.result().code(), absl::StatusCode::kCancelled);
}

// A process that is killed is noticed long before the deadline, a minute, by who waits and by who does not.
TEST(ShmP2p, KilledProcessIsNoticed) {
  const std::string path = testing::TempDir() + "/shm_store_" + std::to_string(::getpid());
  const pid_t child = ::fork();
  if (child == 0) {
    // Nothing of the parent's but its memory: no thread was there yet.
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
  EXPECT_EQ(waiting.result().status(), absl::UnavailableError("rank 1 is gone: its process has ended"));
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace gradwire::collectives::cpu
