#include <sys/resource.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "gradwire/base/testing/limits.h"
#include "gradwire/collectives/cpu/world_p2p/world_p2p.h"
#include "gradwire/collectives/cpu/world_p2p/world_p2p_test_world.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

using WorldP2pFailures = WorldP2pTest;

INSTANTIATE_TEST_SUITE_P(Transports, WorldP2pFailures, ::testing::Values("shm", "tcp", "default"),
                         [](const auto& info) { return info.param; });

TEST_P(WorldP2pFailures, OperationOverTheSizeLimitIsRefusedAtOnce) {
  WorldP2p::Options options;
  options.store = std::make_shared<store::HashStore>();
  options.transports = transports();
  options.limits.max_buffer_bytes = 1'000;
  const absl::StatusOr<std::shared_ptr<WorldP2p>> p2p = WorldP2p::create(std::move(options));
  ASSERT_TRUE(p2p.ok()) << p2p.status();
  std::string large(1'001, 'x');
  for (const int src : {0, kAnyRank}) {
    const absl::StatusOr<int> received =
        (*p2p)->receive(src, kChannel, 0, span(large), in(absl::Seconds(10))).result();
    EXPECT_EQ(received.status().code(), absl::StatusCode::kInvalidArgument) << received.status();
  }
  const absl::Status sent = (*p2p)->send(0, kChannel, 0, span(large), in(absl::Seconds(10))).result();
  EXPECT_EQ(sent.code(), absl::StatusCode::kInvalidArgument) << sent;
}

TEST_P(WorldP2pFailures, DeadlinesNameTheRank) {
  World world(2, transports());
  std::string data(1, 'x');
  std::string large(kEager + 1, 'x');
  Future<int> receive = world[0].receive(1, kChannel, 0, span(data), in(absl::Milliseconds(30)));
  EXPECT_EQ(receive.result().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(receive.result().status().message().find("rank 1"), std::string::npos)
      << receive.result().status();
  Future<void> send = world[0].send(1, kChannel, 0, span(large), in(absl::Milliseconds(30)));
  EXPECT_EQ(send.result().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(send.result().message().find("rank 1"), std::string::npos) << send.result();
  // The message that timed out is not received once the receiver knows; a later one is.
  Future<void> mark = world[0].send(1, kChannel, 1, span(data), timeout());
  std::string received(1, ' ');
  EXPECT_TRUE(world[1].receive(0, kChannel, 1, span(received), timeout()).result().ok());
  Future<void> next = world[0].send(1, kChannel, 0, span(data), timeout());
  EXPECT_TRUE(world[1].receive(0, kChannel, 0, span(received), timeout()).result().ok());
  EXPECT_TRUE(next.result().ok());
  EXPECT_TRUE(mark.result().ok());
}

TEST_P(WorldP2pFailures, ARankThatHasNoDescriptorConnectsLater) {
  World world(2, transports());
  std::string data(100, 'x');
  std::string received(100, ' ');
  std::optional<LimitScope> limit(std::in_place, RLIMIT_NOFILE, no_free_descriptor());
  const Future<void> sent = world[0].send(1, kChannel, 0, span(data), timeout());
  const Future<int> receive = world[1].receive(0, kChannel, 0, span(received), timeout());
  // Without the retry this fails at once.
  EXPECT_FALSE(sent.wait_for(absl::Milliseconds(300))) << sent.result();
  limit.reset();
  EXPECT_TRUE(sent.result().ok()) << sent.result();
  EXPECT_TRUE(receive.result().ok()) << receive.result().status();
  EXPECT_EQ(received, data);
}

TEST_P(WorldP2pFailures, CancelReleasesTheMemoryAtOnce) {
  World world(2, transports(), std::size_t{2} << 20);
  for (int i = 0; i < 20; ++i) {
    // By the eager and by the rendezvous protocol.
    const std::size_t size = i % 2 == 0 ? std::size_t{1} << 20 : std::size_t{3} << 20;
    auto data = std::make_unique<std::string>(size, 'x');
    auto into = std::make_unique<std::string>(size, 'x');
    Future<int> receive = world[1].receive(0, kChannel, i, span(*into), timeout());
    Future<void> send = world[0].send(1, kChannel, i, span(*data), timeout());
    std::thread canceller([&] {
      receive.cancel();
      into.reset();
    });
    send.cancel();
    data.reset();
    canceller.join();
  }
}

TEST_P(WorldP2pFailures, AnotherSizeFailsBothSidesAndNamesBothSizes) {
  World world(2, transports());
  std::string sent(kEager + 1, 'x');
  std::string received(7, 'x');
  Future<void> send = world[0].send(1, kChannel, 0, span(sent), timeout());
  const absl::StatusOr<int> receive = world[1].receive(0, kChannel, 0, span(received), timeout()).result();
  EXPECT_EQ(receive.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(receive.status().message().find("65537 bytes"), std::string::npos) << receive.status();
  EXPECT_NE(receive.status().message().find("7 bytes"), std::string::npos) << receive.status();
  EXPECT_EQ(send.result().code(), absl::StatusCode::kInvalidArgument) << send.result();
  std::string small(3, 'x');
  EXPECT_TRUE(world[0].send(1, kChannel, 0, span(small), timeout()).result().ok());
  EXPECT_EQ(world[1].receive(0, kChannel, 0, span(received), timeout()).result().status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(WorldP2pFailures, MessageOverTheLimitIsRefusedOnBothSides) {
  World world(2, transports());
  const Span large{nullptr, std::size_t{1} << 62};
  EXPECT_EQ(world[0].send(1, kChannel, 0, large, timeout()).result().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(world[1].receive(0, kChannel, 0, large, timeout()).result().status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(WorldP2pFailures, MessagesOfARankThatLeftCanBeReceived) {
  World world(3, transports());
  std::string sent = "a";
  std::string received(1, 'x');
  // Each of the two has connected to the other.
  EXPECT_TRUE(world[0].send(2, kChannel, 0, span(sent), timeout()).result().ok());
  EXPECT_TRUE(world[2].receive(0, kChannel, 0, span(received), timeout()).result().ok());
  for (int i = 0; i < 10; ++i)
    EXPECT_TRUE(world[2].send(0, kChannel, i, span(sent), timeout()).result().ok());
  Future<int> waiting = world[0].receive(2, kChannel, 77, span(received), timeout());
  std::string large(kEager + 1, 'x');
  Future<void> announced = world[0].send(2, kChannel, 0, span(large), timeout());
  world.ends[2] = nullptr;
  EXPECT_EQ(waiting.result().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(waiting.result().status().message(), "rank 2 has left");
  EXPECT_EQ(announced.result().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(announced.result().message().find("rank 2"), std::string::npos);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(world[0].receive(2, kChannel, i, span(received), timeout()).result().value_or(-1), 2);
  }
  EXPECT_EQ(world[0].receive(2, kChannel, 0, span(received), timeout()).result().status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(world[0].send(2, kChannel, 0, span(sent), timeout()).result().code(),
            absl::StatusCode::kUnavailable);
  // A rank that had no connection to it.
  EXPECT_EQ(world[1].send(2, kChannel, 0, span(sent), timeout()).result().code(),
            absl::StatusCode::kUnavailable);
  // The other ranks continue.
  EXPECT_TRUE(world[0].send(1, kChannel, 0, span(sent), timeout()).result().ok());
  EXPECT_TRUE(world[1].receive(0, kChannel, 0, span(received), timeout()).result().ok());
}

TEST_P(WorldP2pFailures, AbortEndsOneChannel) {
  World world(2, transports());
  std::string large(kEager + 1, 'x');
  std::string data(1, 'x');
  std::string other(1, 'x');
  Future<int> receive = world[0].receive(1, kChannel, 0, span(data), timeout());
  Future<int> going_on = world[0].receive(1, kChannel + 1, 0, span(other), timeout());
  Future<void> send = world[0].send(1, kChannel, 0, span(large), timeout());
  world[0].abort(kChannel, absl::AbortedError("requested by the test"));
  EXPECT_EQ(receive.result().status(), absl::AbortedError("requested by the test"));
  EXPECT_EQ(send.result(), absl::AbortedError("requested by the test"));
  EXPECT_EQ(world[0].receive(1, kChannel, 0, span(data), timeout()).result().status(),
            absl::AbortedError("requested by the test"));
  EXPECT_EQ(world[0].send(1, kChannel, 0, span(data), timeout()).result(),
            absl::AbortedError("requested by the test"));
  // A sender of an RTS is informed.
  EXPECT_EQ(world[1].send(0, kChannel, 0, span(large), timeout()).result().code(),
            absl::StatusCode::kAborted);
  EXPECT_TRUE(world[1].send(0, kChannel + 1, 0, span(data), timeout()).result().ok());
  EXPECT_TRUE(going_on.result().ok());
}

TEST_P(WorldP2pFailures, MessagesForAForgottenChannelAreDropped) {
  World world(2, transports());
  std::string small = bytes(kEager, 1);
  std::string large(kEager + 1, 'x');
  std::string received(kEager, 'x');
  world[1].forget(kChannel);
  EXPECT_EQ(world[1].receive(0, kChannel, 0, span(received), timeout()).result().status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(world[1].send(0, kChannel, 0, span(small), timeout()).result().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(world[0].send(1, kChannel, 0, span(large), timeout()).result().code(),
            absl::StatusCode::kCancelled);
  // Send more than the window, which is returned a little later: meanwhile messages are announced and
  // refused.
  for (int i = 0; i < 600; ++i) {
    const absl::Status sent = world[0].send(1, kChannel, 0, span(small), timeout()).result();
    EXPECT_TRUE(sent.ok() || absl::IsCancelled(sent)) << sent;
  }
  // It is sent at once, although no receive is posted.
  EXPECT_TRUE(world[0].send(1, kChannel + 1, 0, span(small), timeout()).wait_for(absl::Seconds(30)));
}

TEST_P(WorldP2pFailures, ErrorsNameRanksAsTheChannelDoes) {
  World world(3, transports());
  std::string data(1, 'x');
  std::string large(kEager + 1, 'x');
  world[0].name_ranks(kChannel, {{0, 0}, {2, 1}});
  const auto says = [](const absl::Status& status, const std::string& part) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status;
  };
  const absl::Time now = in(absl::Milliseconds(20));
  says(world[0].receive(2, kChannel, 0, span(data), now).result().status(), "arrived from rank 1");
  says(world[0].receive(1, kChannel, 0, span(data), now).result().status(),
       "arrived from rank 1 of the world");
  says(world[0].receive(2, kChannel + 1, 0, span(data), now).result().status(), "arrived from rank 2");
  says(world[0].send(2, kChannel, 0, span(large), now).result(), "rank 1 has not received");
  Future<int> receive = world[0].receive(2, kChannel, 0, span(data), timeout());
  EXPECT_TRUE(world[2].send(0, kChannel, 7, span(data), timeout()).result().ok());
  world.ends[2] = nullptr;
  EXPECT_EQ(receive.result().status().message(), "rank 1 has left");
  EXPECT_EQ(world[0].receive(2, kChannel + 1, 0, span(data), timeout()).result().status().message(),
            "rank 2 has left");
  says(world[0].send(2, kChannel, 0, span(data), timeout()).result(), "rank 1 ");
}

TEST_P(WorldP2pFailures, ShutdownCancelsOperations) {
  World world(2, transports());
  std::string large(kEager + 1, 'x');
  std::string data(1, 'x');
  Future<int> receive = world[0].receive(1, kChannel, 0, span(data), timeout());
  Future<void> send = world[0].send(1, kChannel, 0, span(large), timeout());
  world[0].shutdown();
  world[0].shutdown();
  EXPECT_EQ(receive.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(send.result().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(world[0].send(1, kChannel, 0, span(data), timeout()).result().code(),
            absl::StatusCode::kCancelled);
}

TEST_P(WorldP2pFailures, WrongArgumentsAreRefused) {
  World world(1, transports());
  std::string data(1, 'x');
  for (const int rank : {-2, 1}) {
    EXPECT_EQ(world[0].send(rank, kChannel, 0, span(data), timeout()).result().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(world[0].receive(rank, kChannel, 0, span(data), timeout()).result().status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(WorldP2p::create({.rank = 2, .size = 2, .store = world.store}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(WorldP2p::create({.store = world.store, .transports = {"pigeon"}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradwire::collectives::cpu
