#include "gradwire/transport/fault_injection.h"

#include <atomic>
#include <chrono>
#include <future>

#include "gradwire/base/manual_clock.h"
#include "gradwire/transport/conformance.h"
#include "gradwire/transport/loopback/loopback_transport.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::transport {
namespace {

Fault deliver(Direction, const Message&) { return {}; }

std::string name_of_faulty(const testing::TestParamInfo<TransportKind>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    DeliveringAll, TransportConformance,
    testing::Values(
        TransportKind{"faulty_tcp",
                      [] { return make_fault_injecting_transport(make_tcp_transport(), deliver); }},
        TransportKind{"faulty_loopback",
                      [] { return make_fault_injecting_transport(make_loopback_transport(), deliver); }, true,
                      false}),
    name_of_faulty);

Message text_message(std::string header) {
  Message message;
  message.header = std::move(header);
  return message;
}

// A wrapped client and a plain server that answers each "request N" with "answer N".
class FaultInjection : public testing::Test {
 protected:
  void start(FaultPolicy policy, Clock& clock = Clock::system()) {
    server_ = make_tcp_transport();
    auto listening = server_->listen([this](const std::shared_ptr<Connection>&) { return server_listener_; });
    ASSERT_TRUE(listening.ok());
    client_ = make_fault_injecting_transport(make_tcp_transport(), std::move(policy), clock);
    auto connection = client_->connect(*listening, client_listener_, absl::Seconds(20));
    ASSERT_TRUE(connection.ok());
    connection_ = *connection;
  }

  void send(const std::string& header) { ASSERT_TRUE(connection_->send(text_message(header)).ok()); }

  static std::vector<std::string> headers(const std::vector<Message>& messages) {
    std::vector<std::string> all;
    for (const Message& message : messages) all.push_back(message.header);
    return all;
  }

  void TearDown() override {
    if (client_ != nullptr) client_->shutdown();
    if (server_ != nullptr) server_->shutdown();
    EXPECT_EQ(client_listener_->closed_count(), 1);
    EXPECT_EQ(client_listener_->misplaced_calls(), 0);
  }

  // Declared first, because it must outlive the transport that uses it.
  ManualClock clock_;
  std::shared_ptr<RecordingListener> server_listener_ =
      std::make_shared<RecordingListener>([](Connection& connection, const Message& message) {
        Message answer = message;
        answer.header = "answer" + message.header.substr(message.header.find(' '));
        EXPECT_TRUE(connection.send(std::move(answer)).ok());
      });
  std::shared_ptr<RecordingListener> client_listener_ = std::make_shared<RecordingListener>();
  std::shared_ptr<Connection> connection_;
  std::unique_ptr<Transport> server_;
  std::unique_ptr<Transport> client_;
};

using Texts = std::vector<std::string>;

TEST_F(FaultInjection, ALostRequestNeverArrives) {
  start([](Direction direction, const Message& message) -> Fault {
    if (direction == Direction::kOutgoing && message.header == "request 2") return {Fault::Kind::kDrop};
    return {};
  });
  for (int i = 1; i <= 3; ++i) send("request " + std::to_string(i));
  EXPECT_EQ(headers(client_listener_->wait_for_messages(2)), (Texts{"answer 1", "answer 3"}));
  EXPECT_EQ(headers(server_listener_->wait_for_messages(2)), (Texts{"request 1", "request 3"}));
}

TEST_F(FaultInjection, ALostAnswerMeansThatTheRequestArrived) {
  start([](Direction direction, const Message& message) -> Fault {
    if (direction == Direction::kIncoming && message.header == "answer 2") return {Fault::Kind::kDrop};
    return {};
  });
  for (int i = 1; i <= 3; ++i) send("request " + std::to_string(i));
  EXPECT_EQ(headers(client_listener_->wait_for_messages(2)), (Texts{"answer 1", "answer 3"}));
  EXPECT_EQ(headers(server_listener_->wait_for_messages(3)), (Texts{"request 1", "request 2", "request 3"}));
}

TEST_F(FaultInjection, ADuplicateArrivesTwiceWithItsOwnBuffers) {
  start([](Direction direction, const Message&) -> Fault {
    return {direction == Direction::kIncoming ? Fault::Kind::kDuplicate : Fault::Kind::kDeliver};
  });
  Message message = text_message("request 1");
  message.buffers = {make_test_buffer(1'000, 3), Buffer()};
  ASSERT_TRUE(connection_->send(std::move(message)).ok());
  auto answers = client_listener_->wait_for_messages(2);
  ASSERT_EQ(headers(answers), (Texts{"answer 1", "answer 1"}));
  EXPECT_NE(answers[0].buffers[0].data(), answers[1].buffers[0].data());
  for (const Message& answer : answers) {
    EXPECT_TRUE(is_test_buffer(answer.buffers[0], 1'000, 3));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(answer.buffers[0].data()) % 64, 0);
    EXPECT_EQ(answer.buffers[1].size(), 0);
  }
}

TEST_F(FaultInjection, ADelayHoldsBackLaterMessages) {
  start(
      [](Direction direction, const Message& message) -> Fault {
        if (direction == Direction::kOutgoing && message.header == "request 2") {
          return {Fault::Kind::kDelay, absl::Seconds(10)};
        }
        return {};
      },
      clock_);
  Message message = text_message("request 2");
  Buffer mine = make_test_buffer(500, 9, Buffer::Sharing::kBorrowed);
  message.buffers = {mine};
  send("request 1");
  auto ticket = connection_->send(std::move(message));
  ASSERT_TRUE(ticket.ok());
  connection_->capture(*ticket);
  static_cast<char*>(mine.data())[0] ^= 1;
  send("request 3");
  EXPECT_EQ(headers(client_listener_->wait_for_messages(1)), Texts{"answer 1"});
  // The listener records a message only after it has answered it.
  EXPECT_EQ(server_listener_->wait_for_messages(1).size(), 1);
  clock_.advance(absl::Seconds(11));
  EXPECT_EQ(headers(client_listener_->wait_for_messages(3)), (Texts{"answer 1", "answer 2", "answer 3"}));
  EXPECT_TRUE(is_test_buffer(server_listener_->wait_for_messages(3)[1].buffers[0], 500, 9));
}

TEST_F(FaultInjection, ADelayedAnswerArrivesBeforeTheEndOfItsConnection) {
  std::atomic<bool> seen{false};
  start(
      [&seen](Direction direction, const Message&) -> Fault {
        if (direction == Direction::kOutgoing) return {};
        seen = true;
        return {Fault::Kind::kDelay, absl::Hours(1)};
      },
      clock_);
  send("request 1");
  server_listener_->wait_for_messages(1);
  server_->shutdown();
  EXPECT_EQ(client_listener_->wait_closed().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client_listener_->message_count(), seen ? 1 : 0);
}

TEST_F(FaultInjection, ACutEndsTheConnectionAtBothEnds) {
  start([](Direction, const Message& message) -> Fault {
    return {message.header == "request 2" ? Fault::Kind::kCut : Fault::Kind::kDeliver};
  });
  send("request 1");
  EXPECT_EQ(client_listener_->wait_for_messages(1).size(), 1);
  send("request 2");
  EXPECT_EQ(client_listener_->wait_closed().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_listener_->wait_closed().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_listener_->message_count(), 1);
  EXPECT_EQ(connection_->send(text_message("late")).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(FaultInjection, RandomDelaysLoseNothingAndKeepTheOrder) {
  FaultRates rates;
  rates.delay = 0.5;
  rates.max_delay = absl::Microseconds(300);
  start(seeded_fault_policy(11, rates));
  Texts expected;
  for (int i = 0; i < 300; ++i) {
    send("request " + std::to_string(i));
    expected.push_back("answer " + std::to_string(i));
  }
  EXPECT_EQ(headers(client_listener_->wait_for_messages(300)), expected);
}

// The listener has not handled the delayed message yet, which may raise its limit. So its limit says nothing
// about the messages behind it.
TEST_F(FaultInjection, MessageBehindADelayedOneIsNotMeasuredByAnOldLimit) {
  client_listener_->set_max_message_bytes(100);
  std::promise<void> large_arrived;
  start(
      [&large_arrived](Direction direction, const Message& message) -> Fault {
        if (direction == Direction::kOutgoing) return {};
        if (message.header == "answer 1") return {Fault::Kind::kDelay, absl::Hours(1)};
        large_arrived.set_value();
        return {};
      },
      clock_);
  send("request 1");
  send("request " + std::string(1'000, '2'));
  ASSERT_EQ(large_arrived.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  clock_.advance(absl::Hours(2));
  EXPECT_EQ(client_listener_->wait_for_messages(2).size(), 2);
}

// A transport whose only connection receives what the test calls.
class PuppetTransport : public Transport {
 public:
  class Puppet : public Connection {
   public:
    absl::StatusOr<uint64_t> send(Message) override { return 1; }
    void capture(uint64_t) override {}
    bool borrows(uint64_t) override { return false; }
    void close(absl::Status, absl::Duration) override {}
    std::string peer_address() const override { return "puppet"; }
  };

  std::string name() const override { return "puppet"; }
  absl::StatusOr<std::string> listen(AcceptHandler) override { return std::string("puppet"); }
  absl::StatusOr<std::shared_ptr<Connection>> connect(const std::string&,
                                                      std::shared_ptr<ConnectionListener> listener,
                                                      absl::Duration) override {
    listener_ = std::move(listener);
    return puppet_;
  }
  void shutdown() override { listener_->on_closed(*puppet_, absl::CancelledError("shut down")); }

  ConnectionListener& listener() { return *listener_; }
  Connection& connection() { return *puppet_; }

 private:
  const std::shared_ptr<Puppet> puppet_ = std::make_shared<Puppet>();
  std::shared_ptr<ConnectionListener> listener_;
};

TEST_F(FaultInjection, MessageWithoutItsBuffersArrivesInItsPlace) {
  auto inner = std::make_unique<PuppetTransport>();
  PuppetTransport& puppet = *inner;
  const auto policy = [](Direction, const Message& message) -> Fault {
    if (message.header == "late") return {Fault::Kind::kDelay, absl::Seconds(5)};
    return {};
  };
  client_ = make_fault_injecting_transport(std::move(inner), policy, clock_);
  ASSERT_TRUE(client_->connect("puppet", client_listener_, absl::Seconds(1)).ok());
  puppet.listener().on_arriving(puppet.connection(), "late", 100, 10);
  puppet.listener().on_message(puppet.connection(), text_message("late"));
  puppet.listener().on_lost(puppet.connection(), "lost", absl::ResourceExhaustedError("no memory"));
  puppet.listener().on_message(puppet.connection(), text_message("last"));
  const auto announced = client_listener_->announced();
  ASSERT_EQ(announced.size(), 1u);
  EXPECT_EQ(announced[0].header, "late");
  EXPECT_TRUE(client_listener_->lost().empty());
  clock_.advance(absl::Seconds(5));
  EXPECT_EQ(headers(client_listener_->wait_for_messages(2)), (Texts{"late", "last"}));
  const auto lost = client_listener_->lost();
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].header, "lost");
  EXPECT_EQ(lost[0].reason.code(), absl::StatusCode::kResourceExhausted);
}

TEST(SeededFaultPolicy, TheSameSeedGivesTheSameFaultsAtTheGivenRates) {
  FaultRates rates;
  rates.drop = 0.2;
  rates.delay = 0.3;
  rates.duplicate = 0.1;
  rates.applies_to = [](Direction, const Message& message) { return message.header != "spared"; };
  FaultPolicy one = seeded_fault_policy(5, rates);
  FaultPolicy same = seeded_fault_policy(5, rates);
  FaultPolicy other = seeded_fault_policy(6, rates);
  int counts[5] = {};
  int different = 0;
  for (int i = 0; i < 10'000; ++i) {
    Fault a = one(Direction::kOutgoing, text_message("x"));
    Fault b = same(Direction::kOutgoing, text_message("x"));
    EXPECT_EQ(a.kind, b.kind);
    EXPECT_EQ(a.delay, b.delay);
    different += a.kind != other(Direction::kOutgoing, text_message("x")).kind;
    EXPECT_EQ(one(Direction::kIncoming, text_message("spared")).kind, Fault::Kind::kDeliver);
    ++counts[static_cast<int>(a.kind)];
  }
  EXPECT_GT(different, 1'000);
  EXPECT_NEAR(counts[static_cast<int>(Fault::Kind::kDrop)], 2'000, 200);
  EXPECT_NEAR(counts[static_cast<int>(Fault::Kind::kDelay)], 3'000, 200);
  EXPECT_NEAR(counts[static_cast<int>(Fault::Kind::kDuplicate)], 1'000, 200);
  EXPECT_EQ(counts[static_cast<int>(Fault::Kind::kCut)], 0);
}

}  // namespace
}  // namespace gradwire::transport
