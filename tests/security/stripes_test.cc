// Stripes carry parts of large buffers. Who reads the network knows the token in the preface of a connection,
// and tries to join it with a stripe of its own.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/security/setup/make_credentials.h"
#include "gradwire/tests/security/protection.h"
#include "gradwire/tests/security/raw_socket.h"
#include "gradwire/tests/security/relay.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gradwire/transport/tcp/wire/frame.h"
#include "gradwire/transport/tcp/wire/preface.h"

namespace gradwire {
namespace {

using transport::Preface;
using transport::RecordingListener;

constexpr std::size_t kLarge = 1'000'000;

class StolenStripes : public ::testing::Test {
 protected:
  static transport::TcpOptions options() {
    transport::TcpOptions options;
    options.bind_address = "127.0.0.1";
    options.credentials = *security::make_credentials(member(Protection::kToken, /*relayed=*/true));
    options.purpose = "rpc";
    options.stripes = 2;
    options.stripe_from_bytes = transport::kMinStripedBytes;
    return options;
  }

  StolenStripes() {
    const auto address = server_->listen([this](const auto&) { return at_server_; });
    EXPECT_TRUE(absl::SimpleAtoi(address->substr(address->rfind(':') + 1), &port_));
    relay_ = std::make_unique<Relay>(port_);
    const auto connection =
        client_->connect(absl::StrCat("127.0.0.1:", relay_->port()), at_client_, absl::Seconds(60));
    connection_ = *connection;
    (void)connection_->send({"first", {}});
    EXPECT_EQ(at_server_->wait_for_messages(1).size(), 1u);
  }
  ~StolenStripes() override {
    client_->shutdown();
    server_->shutdown();
  }

  // The preface of a stripe with the token of the connection, which the attacker has read on its way.
  std::string stolen_preface(int stripe, int stripes) {
    const auto seen = Preface::parse(relay_->seen(Relay::Way::kToServer).substr(0, Preface::kBytes));
    EXPECT_TRUE(seen.ok()) << seen.status();
    return Preface{.kind = Preface::Kind::kStripe, .stripe = stripe, .stripes = stripes, .token = seen->token}
        .encode();
  }

  void expect_large_message_arrives(std::size_t index) {
    transport::Message message;
    message.header = "large";
    message.buffers = {transport::make_test_buffer(kLarge, 7)};
    ASSERT_TRUE(connection_->send(std::move(message)).ok());
    const auto received = at_server_->wait_for_messages(index + 1);
    ASSERT_EQ(received.size(), index + 1);
    EXPECT_TRUE(transport::is_test_buffer(received[index].buffers[0], kLarge, 7));
  }

  std::unique_ptr<transport::Transport> server_ = transport::make_tcp_transport(options());
  std::unique_ptr<transport::Transport> client_ = transport::make_tcp_transport(options());
  std::shared_ptr<RecordingListener> at_server_ = std::make_shared<RecordingListener>();
  std::shared_ptr<RecordingListener> at_client_ = std::make_shared<RecordingListener>();
  int port_ = 0;
  std::unique_ptr<Relay> relay_;
  std::shared_ptr<transport::Connection> connection_;
};

TEST_F(StolenStripes, StrangerWithTheTokenOfAConnectionJoinsNothing) {
  for (int stripe = 1; stripe <= 2; ++stripe) {
    RawSocket attacker = RawSocket::connect(port_);
    attacker.send(stolen_preface(stripe, 2) + std::string(100, 'x'));
    const RawSocket::Rest answer = attacker.receive_until_closed();
    EXPECT_TRUE(answer.closed);
    // The hello of a handshake, and a refusal.
    EXPECT_EQ(answer.bytes.substr(0, 4), "GWa1");
  }
  expect_large_message_arrives(1);
  expect_large_message_arrives(2);
  EXPECT_EQ(at_client_->closed_count(), 0);
}

TEST_F(StolenStripes, StrangerThatWaitsDoesNotKeepStripesFromOpening) {
  RawSocket one = RawSocket::connect(port_);
  RawSocket two = RawSocket::connect(port_);
  one.send(stolen_preface(1, 2));
  two.send(stolen_preface(2, 2));
  EXPECT_FALSE(one.receive(8).empty());
  EXPECT_FALSE(two.receive(8).empty());
  expect_large_message_arrives(1);
  expect_large_message_arrives(2);
  EXPECT_EQ(at_client_->closed_count(), 0);
}

TEST_F(StolenStripes, GuessedTokensJoinNothing) {
  for (int i = 0; i < 20; ++i) {
    RawSocket attacker = RawSocket::connect(port_);
    attacker.send(
        Preface{.kind = Preface::Kind::kStripe, .stripe = 1, .stripes = 1, .token = transport::random_token()}
            .encode());
    const RawSocket::Rest answer = attacker.receive_until_closed();
    EXPECT_TRUE(answer.closed);
    EXPECT_EQ(answer.bytes, "");
  }
  expect_large_message_arrives(1);
}

}  // namespace
}  // namespace gradwire
