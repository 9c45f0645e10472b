// A peer that sends many small messages over UCX delays others by one round of the loop. The clock moves only
// when a message has been handled or a connection has been accepted, and the test drives the loop of the
// accepting end round by round.

#include "gradwire/transport/turns/turns.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/base/manual_clock.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/security/credentials.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/ucx/ucx_transport.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

constexpr absl::Duration kUnit = absl::Microseconds(10);
// Messages that are handled in one round. The time begins with the first question, which follows the first
// message.
const std::size_t kUnits = static_cast<std::size_t>(Turns::kRound / kUnit) + 1;
const std::size_t kMany = 20 * kUnits;

class UcxTurns : public ::testing::Test {
 protected:
  // A process that connects, with a thread of its own.
  struct Client {
    std::unique_ptr<Transport> transport;
    std::shared_ptr<Connection> connection;
    // The listener of the accepting end, and the number of messages that have been sent.
    std::shared_ptr<RecordingListener> served;
    std::size_t sent = 0;
  };

  static UcxOptions options() {
    UcxOptions options;
    options.credentials = security::insecure_credentials();
    options.purpose = "test";
    options.own_name = "worker";
    options.bind_address = "127.0.0.1";
    options.methods = "tcp";
    return options;
  }

  void SetUp() override {
    loop_ = *EventLoop::create(clock_);
    server_ = make_ucx_transport(options(), loop_);
    const auto listening = server_->listen([this](const std::shared_ptr<Connection>& connection) {
      accepted_.push_back(connection);
      listeners_.push_back(std::make_shared<RecordingListener>([this](Connection& from, const Message&) {
        clock_.advance(unit_);
        if (answers_) (void)from.send({"answer", {}});
      }));
      return listeners_.back();
    });
    ASSERT_TRUE(listening.ok()) << listening.status();
    address_ = *listening;
    ASSERT_TRUE(loop_->try_enter());
    connect(attacker_);
    connect(honest_);
  }

  void TearDown() override {
    // First the end that only the test drives: clients wait for it if they flush.
    loop_->leave();
    server_->shutdown();
    for (Client* const client : {&attacker_, &honest_}) client->transport->shutdown();
    end(*loop_);
  }

  void poll_until(const std::function<bool()>& done) {
    const absl::Time deadline = Clock::system().now() + kTestTimeout;
    while (!done() && Clock::system().now() < deadline) loop_->poll();
    ASSERT_TRUE(done());
  }

  // Connects, and sends a message, so that later ones need nothing of the accepting end to leave.
  void connect(Client& client) {
    client.transport = make_ucx_transport(options());
    const std::size_t before = listeners_.size();
    const auto connection =
        client.transport->connect(address_, std::make_shared<RecordingListener>(), kTestTimeout);
    ASSERT_TRUE(connection.ok()) << connection.status();
    client.connection = *connection;
    ASSERT_TRUE(client.connection->send({"first", {}}).ok());
    poll_until([&] { return listeners_.size() > before && listeners_.back()->message_count() == 1; });
    client.served = listeners_.back();
    client.served->take_messages(1);
  }

  // Sends messages with the next numbers. The accepting end receives them when it polls.
  static void send(Client& client, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_TRUE(client.connection->send({std::to_string(client.sent++), {}}).ok());
    }
    ASSERT_TRUE(eventually([&] { return client.connection->queued_bytes() == 0; }));
  }

  static void expect_all_in_order(const Client& client) {
    const std::vector<Message> messages = client.served->wait_for_messages(client.sent);
    ASSERT_EQ(messages.size(), client.sent);
    for (std::size_t i = 0; i < client.sent; ++i) ASSERT_EQ(messages[i].header, std::to_string(i));
  }

  // Sends many messages, of which the accepting end then has received all and handled some.
  void flood() {
    send(attacker_, kMany);
    poll_until([this] { return attacker_.served->message_count() > 0; });
    EXPECT_LE(attacker_.served->message_count(), kUnits + 1);
  }

  // The time that a message takes, and whether each is answered.
  absl::Duration unit_ = kUnit;
  bool answers_ = false;
  ManualClock clock_;
  std::shared_ptr<EventLoop> loop_;
  std::unique_ptr<Transport> server_;
  std::string address_;
  std::vector<std::shared_ptr<Connection>> accepted_;
  std::vector<std::shared_ptr<RecordingListener>> listeners_;
  Client attacker_, honest_;
};

TEST_F(UcxTurns, APeerThatSendsMuchIsServedForOneRoundAtATime) {
  send(attacker_, kMany);
  std::size_t before = 0;
  poll_until([&] {
    const std::size_t now = attacker_.served->message_count();
    // In the first round one deferred task handles a further message.
    EXPECT_LE(now - before, kUnits + 1);
    before = now;
    return now == kMany;
  });
  expect_all_in_order(attacker_);
}

TEST_F(UcxTurns, AMessageOfAnotherPeerIsHandledInTheNextRound) {
  flood();
  for (std::size_t sent = 1; sent <= 5; ++sent) {
    const std::size_t before = attacker_.served->message_count();
    send(honest_, 1);
    poll_until([&] { return honest_.served->message_count() == sent; });
    // UCX may see the message one round later.
    EXPECT_LE(attacker_.served->message_count() - before, 2 * kUnits);
  }
  EXPECT_LT(attacker_.served->message_count(), kMany);
  poll_until([this] { return attacker_.served->message_count() == kMany; });
  expect_all_in_order(attacker_);
  expect_all_in_order(honest_);
}

// More messages arrive while others wait for a later round.
TEST_F(UcxTurns, EventsGiveAPeerNoFurtherTurns) {
  flood();
  for (int round = 0; round < 5; ++round) {
    const std::size_t before = attacker_.served->message_count();
    send(attacker_, 10);
    loop_->poll();
    EXPECT_LE(attacker_.served->message_count() - before, kUnits);
  }
  poll_until([this] { return attacker_.served->message_count() == attacker_.sent; });
  expect_all_in_order(attacker_);
}

TEST_F(UcxTurns, TheEndOfThePeerIsReportedAfterAllMessages) {
  flood();
  attacker_.transport->shutdown();
  poll_until([this] { return attacker_.served->closed_count() > 0; });
  expect_all_in_order(attacker_);
}

TEST_F(UcxTurns, AGoodbyeIsReadAfterAllMessages) {
  flood();
  attacker_.connection->close(absl::OkStatus(), kTestTimeout);
  poll_until([this] { return attacker_.served->closed_count() > 0; });
  expect_all_in_order(attacker_);
}

TEST_F(UcxTurns, MessagesThatWaitForALaterRoundAreDroppedAfterClose) {
  flood();
  const std::size_t before = attacker_.served->message_count();
  accepted_[0]->close(absl::OkStatus(), kTestTimeout);
  poll_until([this] { return attacker_.served->closed_count() > 0; });
  EXPECT_EQ(attacker_.served->message_count(), before);
}

// While as many messages wait as fit in UcxContext::kMostWaiting, no others are read. So a fast sender waits,
// in place of being cut off because too many of its messages have arrived.
TEST_F(UcxTurns, APeerThatSendsFasterThanItIsServedWaits) {
  unit_ = Turns::kRound;
  for (int i = 0; i < 80'000; ++i) {
    ASSERT_TRUE(attacker_.connection->send({std::to_string(attacker_.sent++), {}}).ok());
  }
  poll_until([this] {
    return attacker_.served->message_count() == attacker_.sent || attacker_.served->closed_count() > 0;
  });
  expect_all_in_order(attacker_);
}

// The answers take turns, too, and each of them leaves.
TEST_F(UcxTurns, AnswersThatWaitForALaterRoundLeave) {
  answers_ = true;
  flood();
  poll_until([this] { return attacker_.served->message_count() == kMany; });
  poll_until([this] { return accepted_[0]->queued_bytes() == 0; });
}

}  // namespace
}  // namespace gradwire::transport
