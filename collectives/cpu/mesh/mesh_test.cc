#include "collectives/cpu/mesh/mesh.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "collectives/cpu/mesh/mesh_wire.h"
#include "gtest/gtest.h"
#include "store/hash_store.h"
#include "transport/process_counts.h"
#include "transport/recording_listener.h"
#include "transport/tcp/tcp_transport.h"

namespace gradwire::collectives::cpu {
namespace {

constexpr uint64_t kChannel = 3;
constexpr std::size_t kEager = std::size_t{64} << 10;

absl::Time in(absl::Duration duration) { return Clock::system().now() + duration; }
absl::Time patience() { return in(absl::Seconds(60)); }

Span span(std::string& bytes) { return {bytes.data(), bytes.size()}; }

std::string bytes(std::size_t size, unsigned seed) {
  std::string out(size, '\0');
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<char>((i + seed) * 2654435761u >> 13);
  return out;
}

// A world within this process.
class World {
 public:
  World(int size, std::vector<std::string> transports, std::size_t eager_bytes = kEager)
      : store(std::make_shared<store::HashStore>()) {
    for (int rank = 0; rank < size; ++rank) meshes.push_back(make(rank, size, transports, eager_bytes));
  }

  std::shared_ptr<Mesh> make(int rank, int size, std::vector<std::string> transports,
                             std::size_t eager_bytes) {
    Mesh::Options options;
    options.rank = rank;
    options.size = size;
    options.store = store;
    options.transports = std::move(transports);
    options.eager_bytes = eager_bytes;
    absl::StatusOr<std::shared_ptr<Mesh>> mesh = Mesh::create(std::move(options));
    EXPECT_TRUE(mesh.ok()) << mesh.status();
    return mesh.ok() ? *mesh : nullptr;
  }
  Mesh& operator[](int rank) { return *meshes[static_cast<std::size_t>(rank)]; }

  std::shared_ptr<store::Store> store;
  std::vector<std::shared_ptr<Mesh>> meshes;
};

class MeshTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    descriptors_ = transport::count_descriptors();
    threads_ = transport::count_threads();
  }
  // Nothing is left behind.
  void TearDown() override {
    EXPECT_EQ(transport::count_descriptors(), descriptors_);
    EXPECT_EQ(transport::count_threads(), threads_);
  }
  std::vector<std::string> transports() const {
    return GetParam() == "default" ? std::vector<std::string>{} : std::vector<std::string>{GetParam()};
  }

 private:
  int descriptors_ = 0;
  int threads_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Transports, MeshTest, testing::Values("shm", "tcp", "default"),
                         [](const auto& info) { return info.param; });

TEST_P(MeshTest, MessagesOfEverySizeArriveWholeWhicheverComesFirst) {
  // Of which all are announced, some, and only the longest.
  for (const std::size_t eager_bytes : {std::size_t{0}, kEager, std::size_t{2} << 20}) {
    World world(2, transports(), eager_bytes);
    for (const std::size_t size :
         {0ul, 1ul, 7ul, 4096ul, 4097ul, kEager, kEager + 1, 1ul << 20, (8ul << 20) + 5}) {
      for (const bool receive_first : {true, false}) {
        std::string sent = bytes(size, static_cast<unsigned>(size));
        std::string received(size, 'x');
        Future<int> receive;
        Future<void> send;
        if (receive_first) receive = world[1].receive(0, kChannel, 1, span(received), patience());
        send = world[0].send(1, kChannel, 1, span(sent), patience());
        if (!receive_first) receive = world[1].receive(0, kChannel, 1, span(received), patience());
        EXPECT_TRUE(send.result().ok()) << send.result();
        std::memset(sent.data(), 0, sent.size());  // It is the caller's again.
        ASSERT_TRUE(receive.result().ok()) << receive.result().status();
        EXPECT_EQ(*receive.result(), 0);
        EXPECT_EQ(received, bytes(size, static_cast<unsigned>(size))) << size;
      }
    }
  }
}

TEST_P(MeshTest, SendReceiveInBothDirectionsAtOnce) {
  World world(2, transports());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&world, rank] {
      for (int i = 0; i < 100; ++i) {
        const std::size_t size = i % 3 == 0 ? 200'000 : 8;
        std::string sent = bytes(size, static_cast<unsigned>(i + rank));
        std::string received(size, 'x');
        Future<int> receive = world[rank].receive(1 - rank, kChannel, i, span(received), patience());
        Future<void> send = world[rank].send(1 - rank, kChannel, i, span(sent), patience());
        ASSERT_TRUE(receive.result().ok()) << receive.result().status();
        ASSERT_TRUE(send.result().ok()) << send.result();
        EXPECT_EQ(received, bytes(size, static_cast<unsigned>(i + 1 - rank)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(MeshTest, AnySourceSaysWhoSent) {
  World world(4, transports());
  std::vector<std::string> sent = {"0", "1", "2", "3"};
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(world[rank]
                    .send(0, kChannel, 5, span(sent[static_cast<std::size_t>(rank)]), patience())
                    .result()
                    .ok());
  }
  std::string all;
  for (int i = 0; i < 4; ++i) {
    std::string received(1, 'x');
    const absl::StatusOr<int> from =
        world[0].receive(kAnyRank, kChannel, 5, span(received), patience()).result();
    ASSERT_TRUE(from.ok()) << from.status();
    EXPECT_EQ(received, std::to_string(*from));
    all += received;
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, "0123");
}

// Of several threads, each with a tag of its own, messages come in the order in which the thread sent them, short and long.
TEST_P(MeshTest, MessagesAreNotOvertaken) {
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
        sends.push_back(world[0].send(1, kChannel, tag, span(message), patience()));
      for (const Future<void>& send : sends) EXPECT_TRUE(send.result().ok()) << send.result();
    });
    threads.emplace_back([&world, tag] {
      for (int i = 0; i < kMessages; ++i) {
        std::string received(static_cast<std::size_t>(100'000 * (i % 2) + 8), 'x');
        ASSERT_TRUE(world[1].receive(0, kChannel, tag, span(received), patience()).result().ok());
        ASSERT_EQ(received, bytes(received.size(), static_cast<unsigned>(i + tag)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(MeshTest, ManyMessagesThatNobodyReceivesAreHeldBackAndArrive) {
  constexpr int kMessages = 600;  // More than the receiver lets wait.
  World world(2, transports());
  std::vector<std::string> sent;
  for (int i = 0; i < kMessages; ++i) sent.push_back(bytes(kEager, static_cast<unsigned>(i)));
  std::vector<Future<void>> sends;
  for (std::string& message : sent) sends.push_back(world[0].send(1, kChannel, 0, span(message), patience()));
  EXPECT_FALSE(sends.back().wait_for(absl::Milliseconds(50)));
  for (int i = 0; i < kMessages; ++i) {
    std::string received(kEager, 'x');
    ASSERT_TRUE(world[1].receive(0, kChannel, 0, span(received), patience()).result().ok());
    ASSERT_EQ(received, sent[static_cast<std::size_t>(i)]);
  }
  for (const Future<void>& send : sends) EXPECT_TRUE(send.result().ok()) << send.result();
  // The window is open again.
  EXPECT_TRUE(world[0].send(1, kChannel, 0, span(sent[0]), patience()).wait_for(absl::Seconds(30)));
}

TEST_P(MeshTest, SelfSendWorks) {
  World world(1, transports());
  for (const std::size_t size : {0ul, 5ul, kEager, kEager + 1, 1ul << 20}) {
    std::string sent = bytes(size, 1);
    std::string received(size, 'x');
    Future<void> send = world[0].send(0, kChannel, 0, span(sent), patience());
    EXPECT_EQ(send.done(), size <= kEager);
    EXPECT_EQ(world[0].receive(kAnyRank, kChannel, 0, span(received), patience()).result().value_or(-1), 0);
    EXPECT_TRUE(send.result().ok()) << send.result();
    EXPECT_EQ(received, sent);
  }
  std::string sent = bytes(kEager + 1, 1);
  Future<void> late = world[0].send(0, kChannel, 0, span(sent), in(absl::Milliseconds(20)));
  EXPECT_EQ(late.result().code(), absl::StatusCode::kDeadlineExceeded);
  Future<void> refused = world[0].send(0, kChannel, 0, span(sent), patience());
  std::string small(2, 'x');
  EXPECT_EQ(world[0].receive(0, kChannel, 0, span(small), patience()).result().status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.result().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(MeshTest, DeadlinesNameTheRank) {
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
  // What was taken back, and is known to be, is not received; what comes later is.
  Future<void> mark = world[0].send(1, kChannel, 1, span(data), patience());
  EXPECT_TRUE(world[1].receive(0, kChannel, 1, span(data), patience()).result().ok());
  Future<void> next = world[0].send(1, kChannel, 0, span(data), patience());
  std::string received(1, ' ');
  EXPECT_TRUE(world[1].receive(0, kChannel, 0, span(received), patience()).result().ok());
  EXPECT_TRUE(next.result().ok());
  EXPECT_TRUE(mark.result().ok());
}

TEST_P(MeshTest, CancelGivesTheMemoryBackAtOnce) {
  World world(2, transports(), std::size_t{2} << 20);
  for (int i = 0; i < 20; ++i) {
    // At once, and announced.
    const std::size_t size = i % 2 == 0 ? std::size_t{1} << 20 : std::size_t{3} << 20;
    auto data = std::make_unique<std::string>(size, 'x');
    auto into = std::make_unique<std::string>(size, 'x');
    Future<int> receive = world[1].receive(0, kChannel, i, span(*into), patience());
    Future<void> send = world[0].send(1, kChannel, i, span(*data), patience());
    std::thread canceller([&] {
      receive.cancel();
      into.reset();
    });
    send.cancel();
    data.reset();
    canceller.join();
  }
}

TEST_P(MeshTest, AnotherSizeFailsBothSidesAndNamesBothSizes) {
  World world(2, transports());
  std::string sent(kEager + 1, 'x');
  std::string received(7, 'x');
  Future<void> send = world[0].send(1, kChannel, 0, span(sent), patience());
  const absl::StatusOr<int> receive = world[1].receive(0, kChannel, 0, span(received), patience()).result();
  EXPECT_EQ(receive.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(receive.status().message().find("65537 bytes"), std::string::npos) << receive.status();
  EXPECT_NE(receive.status().message().find("7 bytes"), std::string::npos) << receive.status();
  EXPECT_EQ(send.result().code(), absl::StatusCode::kInvalidArgument) << send.result();
  std::string small(3, 'x');
  EXPECT_TRUE(world[0].send(1, kChannel, 0, span(small), patience()).result().ok());
  EXPECT_EQ(world[1].receive(0, kChannel, 0, span(received), patience()).result().status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(MeshTest, RankThatLeavesIsLostAndWhatItSentCanBeReceived) {
  World world(3, transports());
  std::atomic<int> lost{0};
  Mutex mutex;
  CondVar changed;
  world[0].on_lost([&](int rank, const absl::Status& reason) {
    EXPECT_EQ(rank, 2);
    EXPECT_EQ(reason.message(), "rank 2 has left");
    MutexLock lock(mutex);
    ++lost;
    changed.notify_all();
  });
  std::string sent = "a";
  std::string received(1, 'x');
  // Both have connected to one another.
  EXPECT_TRUE(world[0].send(2, kChannel, 0, span(sent), patience()).result().ok());
  EXPECT_TRUE(world[2].receive(0, kChannel, 0, span(received), patience()).result().ok());
  for (int i = 0; i < 10; ++i)
    EXPECT_TRUE(world[2].send(0, kChannel, i, span(sent), patience()).result().ok());
  Future<int> waiting = world[0].receive(2, kChannel, 77, span(received), patience());
  std::string large(kEager + 1, 'x');
  Future<void> announced = world[0].send(2, kChannel, 0, span(large), patience());
  world.meshes[2] = nullptr;
  EXPECT_EQ(waiting.result().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(waiting.result().status().message().find("rank 2"), std::string::npos);
  EXPECT_EQ(announced.result().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(announced.result().message().find("rank 2"), std::string::npos);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(world[0].receive(2, kChannel, i, span(received), patience()).result().value_or(-1), 2);
  }
  EXPECT_EQ(world[0].receive(2, kChannel, 0, span(received), patience()).result().status().code(),
            absl::StatusCode::kUnavailable);
  {
    MutexLock lock(mutex);
    while (lost == 0) changed.wait(mutex);
  }
  EXPECT_EQ(world[0].send(2, kChannel, 0, span(sent), patience()).result().code(),
            absl::StatusCode::kUnavailable);
  // One that could not be reached at all.
  EXPECT_EQ(world[1].send(2, kChannel, 0, span(sent), patience()).result().code(),
            absl::StatusCode::kUnavailable);
  // The others go on.
  EXPECT_TRUE(world[0].send(1, kChannel, 0, span(sent), patience()).result().ok());
  EXPECT_TRUE(world[1].receive(0, kChannel, 0, span(received), patience()).result().ok());
  EXPECT_EQ(lost, 1);
}

TEST_P(MeshTest, MessagesWaitForARankThatComesLater) {
  World world(0, transports());
  world.meshes.push_back(world.make(0, 2, transports(), kEager));
  std::string sent = "a";
  std::string received(1, 'x');
  Future<void> send = world[0].send(1, kChannel, 0, span(sent), patience());
  Future<void> late = world[0].send(1, kChannel, 0, span(sent), in(absl::Milliseconds(20)));
  EXPECT_EQ(late.result().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(send.done());
  world.meshes.push_back(world.make(1, 2, transports(), kEager));
  EXPECT_TRUE(send.result().ok());
  EXPECT_TRUE(world[1].receive(0, kChannel, 0, span(received), patience()).result().ok());
}

TEST_P(MeshTest, AbortEndsOneChannel) {
  World world(2, transports());
  std::string large(kEager + 1, 'x');
  std::string data(1, 'x');
  std::string other(1, 'x');
  Future<int> receive = world[0].receive(1, kChannel, 0, span(data), patience());
  Future<int> going_on = world[0].receive(1, kChannel + 1, 0, span(other), patience());
  Future<void> send = world[0].send(1, kChannel, 0, span(large), patience());
  world[0].abort(kChannel, absl::AbortedError("enough"));
  EXPECT_EQ(receive.result().status(), absl::AbortedError("enough"));
  EXPECT_EQ(send.result(), absl::AbortedError("enough"));
  EXPECT_EQ(world[0].receive(1, kChannel, 0, span(data), patience()).result().status(),
            absl::AbortedError("enough"));
  EXPECT_EQ(world[0].send(1, kChannel, 0, span(data), patience()).result(), absl::AbortedError("enough"));
  // Who announces to it hears of it.
  EXPECT_EQ(world[1].send(0, kChannel, 0, span(large), patience()).result().code(),
            absl::StatusCode::kAborted);
  EXPECT_TRUE(world[1].send(0, kChannel + 1, 0, span(data), patience()).result().ok());
  EXPECT_TRUE(going_on.result().ok());
  world[0].forget(kChannel);
  EXPECT_TRUE(world[1].send(0, kChannel, 9, span(data), patience()).result().ok());
  EXPECT_TRUE(world[0].receive(1, kChannel, 9, span(data), patience()).result().ok());
}

TEST_P(MeshTest, ShutdownEndsWhatIsUnderWay) {
  World world(2, transports());
  std::string large(kEager + 1, 'x');
  std::string data(1, 'x');
  Future<int> receive = world[0].receive(1, kChannel, 0, span(data), patience());
  Future<void> send = world[0].send(1, kChannel, 0, span(large), patience());
  world[0].shutdown();
  world[0].shutdown();
  EXPECT_EQ(receive.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(send.result().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(world[0].send(1, kChannel, 0, span(data), patience()).result().code(),
            absl::StatusCode::kCancelled);
}

TEST_P(MeshTest, WrongArgumentsAreRefused) {
  World world(1, transports());
  std::string data(1, 'x');
  for (const int rank : {-2, 1}) {
    EXPECT_EQ(world[0].send(rank, kChannel, 0, span(data), patience()).result().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(world[0].receive(rank, kChannel, 0, span(data), patience()).result().status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(Mesh::create({.rank = 2, .size = 2, .store = world.store}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Mesh::create({.store = world.store, .transports = {"pigeon"}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A stranger that can speak the transport's protocol, and maybe knows the world's secret.
class HostileMesh : public testing::Test {
 protected:
  HostileMesh() : world_(0, {}) {
    world_.meshes.push_back(world_.make(0, 3, {"tcp"}, kEager));
    address_ = world_.store->get("mesh/rank/0").substr(4);
    address_.pop_back();
    token_ = world_.store->get("mesh/token");
  }
  ~HostileMesh() override { stranger_->shutdown(); }

  struct Connected {
    std::shared_ptr<transport::Connection> connection;
    std::shared_ptr<transport::RecordingListener> listener;
    void send(std::string header, std::size_t buffer = 0) {
      transport::Message message{std::move(header), {}};
      if (buffer > 0) message.buffers.push_back(transport::make_test_buffer(buffer, 1));
      EXPECT_TRUE(connection->send(std::move(message)).ok());
    }
    void expect_closed() { EXPECT_EQ(listener->wait_closed().code(), absl::StatusCode::kUnavailable); }
  };
  Connected connect() {
    Connected connected;
    connected.listener = std::make_shared<transport::RecordingListener>();
    auto connection = stranger_->connect(address_, connected.listener, absl::Seconds(30));
    EXPECT_TRUE(connection.ok());
    connected.connection = *connection;
    return connected;
  }
  std::string hello(int64_t rank, uint64_t size, const std::string& token) {
    return encode_frame({.kind = FrameKind::kHello, .tag = rank, .size = size}) + token;
  }

  World world_;
  std::string address_;
  std::string token_;
  std::unique_ptr<transport::Transport> stranger_ = transport::make_tcp_transport();
};

TEST_F(HostileMesh, StrangersAreTurnedAway) {
  const std::string wrong(kTokenBytes, '0');
  for (const std::string& first :
       {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(4096, '\xff'), hello(1, 3, wrong),
        hello(1, 3, "short"), hello(1, 2, token_), hello(0, 3, token_), hello(-1, 3, token_),
        hello(3, 3, token_), encode_frame({.kind = FrameKind::kWelcome}),
        encode_frame({.kind = FrameKind::kEager, .channel = 3, .size = 0})}) {
    Connected connected = connect();
    connected.send(first);
    connected.expect_closed();
  }
  // They were nobody, so that nobody is lost.
  Connected member = connect();
  member.send(hello(1, 3, token_));
  ASSERT_EQ(member.listener->wait_for_messages(1).size(), 1u);
  member.send(encode_frame({.kind = FrameKind::kEager, .channel = 3, .size = 1}) + "a");
  std::string received(1, 'x');
  EXPECT_EQ(world_[0].receive(1, 3, 0, span(received), patience()).result().value_or(-1), 1);
  // A second one of the same rank.
  Connected second = connect();
  second.send(hello(1, 3, token_));
  second.expect_closed();
}

TEST_F(HostileMesh, MemberThatBreaksTheProtocolIsLost) {
  std::string bad_version = encode_frame({.kind = FrameKind::kEager});
  bad_version[2] = 9;
  std::string bad_kind = encode_frame({.kind = FrameKind::kEager});
  bad_kind[3] = 77;
  const std::vector<std::pair<std::string, std::size_t>> evil = {
      {bad_version, 0},
      {bad_kind, 0},
      {"", 0},
      {encode_frame({.kind = FrameKind::kEager, .size = uint64_t{1} << 60}), 0},
      {encode_frame({.kind = FrameKind::kEager, .size = 5}), 4},
      {encode_frame({.kind = FrameKind::kEager, .size = uint64_t{17} << 20}), std::size_t{17} << 20},
      {encode_frame({.kind = FrameKind::kAnnounce, .size = 5}), 0},
      {encode_frame({.kind = FrameKind::kData, .size = 5, .id = 3}), 5},
      {encode_frame({.kind = FrameKind::kWithdraw, .code = 99, .id = 3}), 0},
      {encode_frame({.kind = FrameKind::kCredit, .size = 5}), 0},
      {encode_frame({.kind = FrameKind::kAsk, .id = 5}), 0},
      {hello(1, 3, token_), 0},
  };
  for (const auto& [header, buffer] : evil) {
    World world(0, {});
    world.meshes.push_back(world.make(0, 3, {"tcp"}, kEager));
    address_ = world.store->get("mesh/rank/0").substr(4);
    address_.pop_back();
    Connected member = connect();
    member.send(hello(1, 3, world.store->get("mesh/token")));
    ASSERT_EQ(member.listener->wait_for_messages(1).size(), 1u);
    std::string received(1, 'x');
    Future<int> receive = world[0].receive(1, 3, 0, span(received), patience());
    member.send(header, buffer);
    member.expect_closed();
    EXPECT_EQ(receive.result().status().code(), absl::StatusCode::kUnavailable) << receive.result().status();
  }
}

// The address in the store is that of somebody who answers what was not asked.
TEST_F(HostileMesh, ReceiverThatBreaksTheProtocolIsLost) {
  for (const Frame& answer : {Frame{.kind = FrameKind::kAsk, .id = 1}, Frame{.kind = FrameKind::kEager},
                              Frame{.kind = FrameKind::kHello}}) {
    World world(0, {});
    world.meshes.push_back(world.make(0, 2, {"tcp"}, kEager));
    std::unique_ptr<transport::Transport> listening = transport::make_tcp_transport();
    auto address = listening->listen([&](const std::shared_ptr<transport::Connection>&) {
      return std::make_shared<transport::RecordingListener>(
          [&](transport::Connection& connection, const transport::Message&) {
            (void)connection.send({encode_frame(answer), {}});
          });
    });
    ASSERT_TRUE(address.ok());
    world.store->set("mesh/rank/1", absl::StrCat("tcp ", *address, "\n"));
    std::string data(1, 'x');
    EXPECT_EQ(world[0].send(1, 3, 0, span(data), patience()).result().code(), absl::StatusCode::kUnavailable);
    listening->shutdown();
  }
}

}  // namespace
}  // namespace gradwire::collectives::cpu
