// Tests that a peer without the token, or one that does not follow the protocol, gets nothing from a
// transport over UCX.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/token/token_credentials.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/ucx/secure/raw_peer.h"
#include "gradwire/transport/ucx/ucx_transport.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

using security::CredentialsPtr;
using ::testing::HasSubstr;
using Kind = UcxHead::Kind;

CredentialsPtr token() {
  return *security::make_token_credentials(security::Secret("a token of the job, of 32 bytes at least"),
                                           true);
}

class HostileUcx : public ::testing::Test {
 protected:
  static UcxOptions options(const CredentialsPtr& credentials = token()) {
    UcxOptions options;
    options.credentials = credentials;
    options.purpose = "test";
    options.own_name = "worker";
    options.bind_address = "127.0.0.1";
    // Connections end because of the rules, not because the time of the peers is over.
    options.introduction_timeout = absl::Minutes(10);
    return options;
  }

  void TearDown() override {
    if (client_ != nullptr) client_->shutdown();
    if (server_ != nullptr) server_->shutdown();
  }

  void listen(UcxOptions options) {
    server_ = make_ucx_transport(std::move(options));
    const auto address = server_->listen([this](const std::shared_ptr<Connection>&) {
      ++accepted_;
      return at_server_;
    });
    ASSERT_TRUE(address.ok()) << address.status();
    address_ = *address;
  }

  // Connects with the token, and expects that a message arrives.
  void expect_serving() {
    client_ = make_ucx_transport(options());
    const std::size_t before = at_server_->message_count();
    at_client_ = std::make_shared<RecordingListener>();
    const auto connection = client_->connect(address_, at_client_, kTestTimeout);
    ASSERT_TRUE(connection.ok()) << connection.status();
    ASSERT_TRUE((*connection)->send({"first", {}}).ok());
    EXPECT_EQ(at_server_->wait_for_messages(before + 1).size(), before + 1);
  }

  std::unique_ptr<Transport> server_, client_;
  std::string address_;
  std::atomic<int> accepted_{0};
  std::shared_ptr<RecordingListener> at_server_ = std::make_shared<RecordingListener>();
  std::shared_ptr<RecordingListener> at_client_;
};

TEST_F(HostileUcx, FramesBeforeTheHandshakeAreNotDelivered) {
  listen(options());
  const std::string large(UcxHead::kSeparateFrom, 'x');
  for (const Kind kind : {Kind::kMessage, Kind::kBuffer, Kind::kGoodbye}) {
    const auto peer = RawPeer::connect(address_);
    const bool is_buffer = kind == Kind::kBuffer;
    const std::string data = is_buffer ? large : kind == Kind::kMessage ? "call" : "";
    peer->send(UcxHead{kind, 1, data.size(), 0}, data, is_buffer);
    EXPECT_THAT(peer->receive_refusal(), HasSubstr("before the handshake"));
    EXPECT_EQ(accepted_, 0);
  }
  expect_serving();
  EXPECT_EQ(accepted_, 1);
}

TEST_F(HostileUcx, AHelloInPlaceOfTheHandshakeIsRefused) {
  listen(options());
  const auto peer = RawPeer::connect(address_);
  peer->send(UcxHead{Kind::kHello, 0, 0, 0});
  EXPECT_THAT(peer->receive_refusal(),
              HasSubstr("the connecting process has no credentials, the accepting process has a token"));
  // The peer does not close its end, so the server does.
  EXPECT_TRUE(peer->wait_closed());
  EXPECT_EQ(accepted_, 0);
  expect_serving();
}

TEST_F(HostileUcx, LargeMessagesOfTheHandshakeAreRefused) {
  listen(options());
  for (const std::size_t bytes : {2'000u, 300'000u, 20'000'000u}) {
    for (const bool rendezvous : {false, true}) {
      const auto peer = RawPeer::connect(address_);
      peer->send(UcxHead{Kind::kHandshake, 0, bytes, 0}, std::string(bytes, 'x'), rendezvous);
      EXPECT_THAT(peer->receive_refusal(), HasSubstr("of the handshake")) << bytes;
    }
  }
  EXPECT_EQ(accepted_, 0);
  expect_serving();
}

TEST_F(HostileUcx, BytesOfAnotherProtocolAreRefused) {
  listen(options());
  for (const char* head : {"", "GET / HTTP/1.1", "GWu1\x02xxxxxxxxxxxxxxxxxxxxxxxxxxx"}) {
    const auto peer = RawPeer::connect(address_);
    peer->send(head, "", false);
    EXPECT_TRUE(peer->receive().has_value());
    EXPECT_TRUE(peer->wait_closed());
  }
  const auto peer = RawPeer::connect(address_);
  peer->send_record("GET / HTTP/1.1");
  EXPECT_THAT(peer->receive_refusal(), HasSubstr("malformed record"));
  EXPECT_EQ(accepted_, 0);
  expect_serving();
}

TEST_F(HostileUcx, ManyMessagesAtOnceAreRefused) {
  listen(options());
  const auto peer = RawPeer::connect(address_);
  const std::string hello =
      token()->for_messages(peer->channel(), {.purpose = "test", .own_name = "peer"})->start().send;
  for (int i = 0; i < 1'000; ++i) peer->send_record(hello);
  // The first one may be answered before the second one has arrived.
  std::string sentence = peer->receive_refusal();
  if (sentence == "(another record)") sentence = peer->receive_refusal();
  EXPECT_THAT(sentence, ::testing::AnyOf(HasSubstr("two messages"), HasSubstr("expected \"proof\"")));
  EXPECT_TRUE(peer->wait_closed());
  EXPECT_EQ(accepted_, 0);
  expect_serving();
}

TEST_F(HostileUcx, RecordedMessagesOfTheHandshakeAreWorthNothing) {
  listen(options());
  const auto honest = RawPeer::connect(address_);
  const auto handshake = token()->for_messages(honest->channel(), {.purpose = "test", .own_name = "peer"});
  const std::string hello = handshake->start().send;
  honest->send_record(hello);
  auto challenge = honest->receive();
  ASSERT_TRUE(challenge.has_value());
  const std::string proof = handshake->receive(challenge->data).send;
  ASSERT_FALSE(proof.empty());
  honest->send_record(proof);
  const auto welcome = honest->receive();
  ASSERT_TRUE(welcome.has_value());
  ASSERT_TRUE(handshake->receive(welcome->data).done);
  honest->send(UcxHead{Kind::kHello, 0, 0, 0});
  const auto answer = honest->receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->head.kind, Kind::kHello);

  // From another port the recorded hello is refused for its addresses, already.
  const auto other = RawPeer::connect(address_);
  other->send_record(hello);
  EXPECT_THAT(other->receive_refusal(), HasSubstr("something between them relays it"));
  // A hello of its own does not help: the recorded proof is for another nonce.
  const auto mixed = RawPeer::connect(address_);
  mixed->send_record(
      token()->for_messages(mixed->channel(), {.purpose = "test", .own_name = "peer"})->start().send);
  ASSERT_TRUE(mixed->receive().has_value());
  mixed->send_record(proof);
  EXPECT_THAT(mixed->receive_refusal(), HasSubstr("different tokens"));
}

TEST_F(HostileUcx, ASilentPeerIsClosedAtTheDeadline) {
  UcxOptions short_time = options();
  short_time.introduction_timeout = absl::Milliseconds(200);
  listen(std::move(short_time));
  const auto silent = RawPeer::connect(address_);
  EXPECT_TRUE(silent->wait_closed());
  // A peer that begins and then stops is closed, too.
  const auto slow = RawPeer::connect(address_);
  slow->send_record(
      token()->for_messages(slow->channel(), {.purpose = "test", .own_name = "peer"})->start().send);
  EXPECT_TRUE(slow->wait_closed());
  EXPECT_EQ(accepted_, 0);
}

TEST_F(HostileUcx, SilentPeersDoNotKeepAnHonestProcessOut) {
  UcxOptions few = options();
  few.limits.max_arrivals = 8;
  few.limits.max_arrivals_per_address = 4;
  listen(std::move(few));
  std::vector<std::unique_ptr<RawPeer>> crowd;
  for (int i = 0; i < 12; ++i) crowd.push_back(RawPeer::connect(address_));
  expect_serving();
}

TEST_F(HostileUcx, ConnectionsOverTheLimitOfAnAddressAreRefusedWithThatReason) {
  UcxOptions one = options();
  one.limits.max_connections_per_address = 1;
  listen(std::move(one));
  expect_serving();
  auto second = std::make_shared<RecordingListener>();
  ASSERT_TRUE(client_->connect(address_, second, kTestTimeout).ok());
  const absl::Status reason = second->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnauthenticated) << reason;
  EXPECT_THAT(std::string(reason.message()), HasSubstr("Limits::max_connections_per_address"));
  EXPECT_EQ(accepted_, 1);
}

TEST_F(HostileUcx, AnAcceptingEndWithoutATokenGetsNoMessage) {
  for (const bool says_hello : {true, false}) {
    const auto impostor = RawPeer::listen();
    client_ = make_ucx_transport(options());
    at_client_ = std::make_shared<RecordingListener>();
    const auto connection = client_->connect(impostor->address(), at_client_, kTestTimeout);
    ASSERT_TRUE(connection.ok()) << connection.status();
    ASSERT_TRUE((*connection)->send({"a secret", {}}).ok());
    impostor->accept();
    const auto hello = impostor->receive();
    ASSERT_TRUE(hello.has_value());
    EXPECT_EQ(hello->head.kind, Kind::kHandshake);
    EXPECT_EQ(hello->data.find("a secret"), std::string::npos);
    if (says_hello) {
      impostor->send(UcxHead{Kind::kHello, 0, 0, 0});
    } else {
      // It sends back what it got.
      impostor->send_record(hello->data);
    }
    EXPECT_THAT(impostor->receive_refusal(),
                HasSubstr(says_hello ? "the accepting process has no credentials" : "expected"));
    const absl::Status reason = at_client_->wait_closed();
    EXPECT_EQ(reason.code(), absl::StatusCode::kUnauthenticated) << reason;
    EXPECT_FALSE(impostor->receive().has_value());
    client_->shutdown();
  }
}

TEST_F(HostileUcx, AnAcceptingEndThatSaysNothingIsUnavailable) {
  const auto silent = RawPeer::listen();
  client_ = make_ucx_transport(options());
  at_client_ = std::make_shared<RecordingListener>();
  ASSERT_TRUE(client_->connect(silent->address(), at_client_, absl::Milliseconds(300)).ok());
  const absl::Status reason = at_client_->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable) << reason;
}

TEST_F(HostileUcx, WithoutATokenFramesBeforeTheHelloAreNotDelivered) {
  listen(options(security::insecure_credentials()));
  const auto peer = RawPeer::connect(address_);
  peer->send(UcxHead{Kind::kMessage, 1, 4, 0}, "call");
  EXPECT_THAT(peer->receive_refusal(), HasSubstr("before the handshake and the hello"));
  EXPECT_EQ(accepted_, 0);
}

}  // namespace
}  // namespace gradwire::transport
