// A peer that sends many small messages delays others by one round of the loop at most. The clock moves only
// when a message has been handled, and the test drives the loop round by round.

#include <string>
#include <vector>

#include "gradwire/base/manual_clock.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/tcp/hostile/hostile_fixture.h"

namespace gradwire::transport {
namespace {

constexpr absl::Duration kUnit = absl::Microseconds(10);
// Messages that are handled in one round. The time begins with the first question, which follows the first
// message.
const std::size_t kUnits = static_cast<std::size_t>(Turns::kRound / kUnit) + 1;
const std::size_t kMany = 20 * kUnits;

std::string frame(const std::string& header) {
  Message message;
  message.header = header;
  return encode_frame_start(message) + header;
}

class TcpTurns : public testing::Test {
 protected:
  void SetUp() override {
    loop_ = *EventLoop::create(clock_);
    TcpOptions options;
    options.bind_address = "127.0.0.1";
    options.credentials = security::insecure_credentials();
    // The thread of the transport sleeps while the test drives the loop.
    server_ = make_tcp_transport(options, loop_);
    const auto listening = server_->listen([this](const std::shared_ptr<Connection>& connection) {
      connections_.push_back(connection);
      listeners_.push_back(std::make_shared<RecordingListener>([this](Connection& from, const Message&) {
        clock_.advance(kUnit);
        if (answers_) (void)from.send({std::string(64, 'a'), {}});
      }));
      return listeners_.back();
    });
    ASSERT_TRUE(listening.ok()) << listening.status();
    ASSERT_TRUE(loop_->try_enter());
    address_ = *listening;
    attacker_ = connect();
    honest_ = connect();
    poll_until([this] { return listeners_.size() == 2; });
    attacked_ = listeners_[0];
    served_ = listeners_[1];
  }

  void TearDown() override {
    loop_->leave();
    server_->shutdown();
    end(*loop_);
  }

  void poll_until(const std::function<bool()>& done) {
    const absl::Time deadline = Clock::system().now() + kTestTimeout;
    while (!done() && Clock::system().now() < deadline) loop_->poll();
    ASSERT_TRUE(done());
  }

  Descriptor connect() {
    const auto addresses = resolve_addresses(address_);
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), addresses->front().get(), addresses->front().length), 0);
    write_all(socket, Preface{.token = random_token()}.encode());
    return socket;
  }

  static void write_all(const Descriptor& socket, const std::string& bytes) {
    ASSERT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  // Sends messages with the numbers from 0 on.
  static void send_many(const Descriptor& socket, std::size_t count) {
    std::string all;
    for (std::size_t i = 0; i < count; ++i) all += frame(std::to_string(i));
    write_all(socket, all);
  }

  static void expect_all_in_order(RecordingListener& listener, std::size_t count) {
    const std::vector<Message> messages = listener.wait_for_messages(count);
    ASSERT_EQ(messages.size(), count);
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(messages[i].header, std::to_string(i));
  }

  // Whether the server answers each message.
  bool answers_ = false;
  ManualClock clock_;
  std::shared_ptr<EventLoop> loop_;
  std::unique_ptr<Transport> server_;
  std::string address_;
  std::vector<std::shared_ptr<Connection>> connections_;
  std::vector<std::shared_ptr<RecordingListener>> listeners_;
  Descriptor attacker_, honest_;
  std::shared_ptr<RecordingListener> attacked_, served_;
};

TEST_F(TcpTurns, APeerThatSendsMuchIsServedForOneRoundAtATime) {
  send_many(attacker_, kMany);
  for (std::size_t before = 0; before < kMany; before = attacked_->message_count()) {
    loop_->poll();
    ASSERT_GT(attacked_->message_count(), before);
    // In the first round the event uses the time, and the deferred task handles one message more.
    EXPECT_LE(attacked_->message_count() - before, kUnits + 1);
  }
  expect_all_in_order(*attacked_, kMany);
}

TEST_F(TcpTurns, AMessageOfAnotherPeerIsHandledInTheNextRound) {
  send_many(attacker_, kMany);
  loop_->poll();
  for (std::size_t sent = 1; sent <= 5; ++sent) {
    write_all(honest_, frame("honest"));
    loop_->poll();
    EXPECT_EQ(served_->message_count(), sent);
  }
  EXPECT_LE(attacked_->message_count(), 7 * kUnits);
  poll_until([this] { return attacked_->message_count() == kMany; });
  expect_all_in_order(*attacked_, kMany);
}

// More bytes arrive while others wait for a later round.
TEST_F(TcpTurns, EventsGiveAPeerNoFurtherTurns) {
  std::string more;
  for (std::size_t i = 0; i < 10; ++i) more += frame(std::to_string(kMany + i));
  send_many(attacker_, kMany);
  loop_->poll();
  const std::size_t before = attacked_->message_count();
  write_all(attacker_, more);
  loop_->poll();
  EXPECT_LE(attacked_->message_count() - before, kUnits);
  poll_until([this] { return attacked_->message_count() == kMany + 10; });
  expect_all_in_order(*attacked_, kMany + 10);
}

TEST_F(TcpTurns, TheEndOfTheStreamIsReportedAfterAllMessages) {
  send_many(attacker_, kMany);
  attacker_.reset();
  poll_until([this] { return attacked_->closed_count() > 0; });
  expect_all_in_order(*attacked_, kMany);
}

// The answers to the first messages reach a closed socket, so later ones cannot be written.
TEST_F(TcpTurns, AFailedWriteLosesNoMessageThatHasArrived) {
  answers_ = true;
  send_many(attacker_, kMany);
  attacker_.reset();
  poll_until([this] { return attacked_->closed_count() > 0; });
  expect_all_in_order(*attacked_, kMany);
}

TEST_F(TcpTurns, MessagesThatWaitForALaterRoundAreDroppedAfterClose) {
  send_many(attacker_, kMany);
  loop_->poll();
  const std::size_t before = attacked_->message_count();
  connections_[0]->close(absl::OkStatus(), absl::Seconds(10));
  attacker_.reset();
  poll_until([this] { return attacked_->closed_count() > 0; });
  EXPECT_EQ(attacked_->message_count(), before);
}

// The middle of a large message is read while the other messages take turns.
TEST_F(TcpTurns, ALargeMessageBetweenSmallOnesArrivesWhole) {
  Message large;
  large.header = "large";
  large.buffers.push_back(make_test_buffer(100'000, 7));
  std::string bytes = encode_frame_start(large) + large.header;
  bytes.append(static_cast<const char*>(large.buffers[0].data()), large.buffers[0].size());
  send_many(attacker_, 2 * kUnits);
  write_all(attacker_, bytes + frame("last"));
  poll_until([this] { return attacked_->message_count() == 2 * kUnits + 2; });
  const std::vector<Message> messages = attacked_->wait_for_messages(2 * kUnits + 2);
  ASSERT_EQ(messages[2 * kUnits].buffers.size(), 1u);
  EXPECT_TRUE(is_test_buffer(messages[2 * kUnits].buffers[0], 100'000, 7));
  EXPECT_EQ(messages.back().header, "last");
}

// Sockets whose peers have proved nothing take their turns behind connections.
TEST_F(TcpTurns, AConnectionIsServedWhileManyArrive) {
  std::vector<Descriptor> crowd;
  for (int i = 0; i < 50; ++i) crowd.push_back(connect());
  send_many(attacker_, kMany);
  loop_->poll();
  write_all(honest_, frame("honest"));
  loop_->poll();
  EXPECT_EQ(served_->message_count(), 1u);
  poll_until([this] { return listeners_.size() == 52; });
}

}  // namespace
}  // namespace gradwire::transport
