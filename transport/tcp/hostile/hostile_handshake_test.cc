// Tests attacks by plain sockets on a listening tcp transport that demands a handshake.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/transport/tcp/hostile/hostile_fixture.h"
#include "gradwire/transport/tcp/secure/fake_credentials.h"

namespace gradwire::transport {
namespace {

using security::Credentials;
using security::PeerIdentity;

class HostileHandshake : public HostileTcp {
 protected:
  static TcpOptions secured_options() {
    TcpOptions options = server_options();
    options.credentials = fake_credentials({.kind = Credentials::Kind::kToken, .has_stream = false});
    options.purpose = "test";
    options.own_name = "server";
    return options;
  }

  void SetUp() override { start(secured_options()); }

  static Preface preface() { return {.proof = Preface::Proof::kToken, .token = random_token()}; }
  static std::string greeting() { return fake_greeting("right", {.own_name = "mallory"}); }

  static TcpOptions honest_options() {
    TcpOptions options = secured_options();
    options.own_name = "honest";
    return options;
  }
};

TEST_F(HostileHandshake, AHandshakeThatDripsByteByByteIsAccepted) {
  Message message;
  message.header = "drip";
  Descriptor socket = connect_silently();
  int one = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  for (char byte : preface().encode() + greeting() + encode_frame_start(message) + "drip")
    write_all(socket, absl::string_view(&byte, 1));
  auto received = listener(0)->wait_for_messages(1);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].header, "drip");
  EXPECT_EQ(peer(0).proof, PeerIdentity::Proof::kToken);
  EXPECT_EQ(peer(0).name, "mallory");
}

TEST_F(HostileHandshake, BytesBehindTheHandshakeAreNotLost) {
  Message message;
  message.header = "early";
  Descriptor socket = connect_silently();
  write_all(socket, preface().encode() + greeting() + encode_frame_start(message) + "early");
  EXPECT_EQ(listener(0)->wait_for_messages(1).size(), 1u);
}

TEST_F(HostileHandshake, GarbageAndWrongPasswordsAreClosedAndNotReported) {
  const int before = count_descriptors();
  for (const std::string& bytes :
       {std::string(64, '\xff'), std::string(100'000, 'x'), fake_greeting("wrong", {}),
        std::string(
            "GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: somebody who knocks at all the doors\r\n\r\n")}) {
    Descriptor socket = connect_silently();
    write_all(socket, preface().encode() + bytes);
    EXPECT_TRUE(is_closed_by_server(socket));
  }
  EXPECT_EQ(listener_count(), 0u);
  expect_still_serving(0, honest_options());
  EXPECT_EQ(peer(0).name, "honest");
  EXPECT_EQ(count_descriptors_down_to(before), before);
}

TEST_F(HostileHandshake, ASocketThatEndsAtAnyByteLeavesNothing) {
  const int before = count_descriptors();
  const std::string bytes = preface().encode() + greeting();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    Descriptor socket = connect_silently();
    write_all(socket, bytes.substr(0, size));
    if (size % 2 == 0) {
      linger reset = {1, 0};
      ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    } else {
      ::shutdown(socket.get(), SHUT_WR);
      EXPECT_TRUE(is_closed_by_server(socket));
    }
  }
  expect_still_serving(0, honest_options());
  EXPECT_EQ(listener_count(), 1u);
  EXPECT_EQ(count_descriptors_down_to(before), before);
}

TEST_F(HostileHandshake, SilenceEndsWithTheIntroductionTimeout) {
  TcpOptions options = secured_options();
  options.introduction_timeout = absl::Milliseconds(50);
  server_->shutdown();
  start(options);
  const std::string bytes = preface().encode() + greeting();
  Descriptor silent = connect_silently();
  Descriptor in_preface = connect_silently();
  Descriptor in_handshake = connect_silently();
  write_all(in_preface, bytes.substr(0, 10));
  write_all(in_handshake, bytes.substr(0, 60));
  EXPECT_TRUE(is_closed_by_server(silent));
  EXPECT_TRUE(is_closed_by_server(in_preface));
  EXPECT_TRUE(is_closed_by_server(in_handshake));
  EXPECT_EQ(listener_count(), 0u);
}

TEST_F(HostileHandshake, ShutdownEndsSocketsInAllStages) {
  Descriptor in_handshake = connect_silently();
  write_all(in_handshake, preface().encode() + greeting().substr(0, 10));
  // The server's end of a refused socket waits until the peer closes.
  Descriptor refused = connect_silently();
  write_all(refused, Preface{.token = random_token()}.encode());
  char byte;
  EXPECT_EQ(::recv(refused.get(), &byte, 1, 0), 1);
  server_->shutdown();
  EXPECT_TRUE(is_closed_by_server(in_handshake));
  EXPECT_TRUE(is_closed_by_server(refused));
}

TEST_F(HostileHandshake, AStripeOfAConnectionWithoutProofIsRefused) {
  const Preface first = preface();
  Descriptor connection = connect_silently();
  write_all(connection, first.encode() + greeting().substr(0, 10));
  Descriptor early = connect_silently();
  write_all(
      early,
      Preface{.kind = Preface::Kind::kStripe, .stripe = 1, .stripes = 1, .token = first.token}.encode());
  EXPECT_TRUE(is_closed_by_server(early));
  EXPECT_EQ(listener_count(), 0u);
  write_all(connection, greeting().substr(10) + encode_frame_start(Message()));
  EXPECT_EQ(listener(0)->wait_for_messages(1).size(), 1u);
  // The proof that a stripe would have to give is the token of its connection.
  Descriptor with_proof = connect_silently();
  std::string bytes =
      Preface{.kind = Preface::Kind::kStripe, .stripe = 1, .stripes = 1, .token = first.token}.encode();
  bytes[5] = static_cast<char>(bytes[5] | 0x10);
  write_all(with_proof, bytes);
  EXPECT_TRUE(is_closed_by_server(with_proof));
  // Somebody who reads the network knows the token of the connection, but cannot prove anything.
  const std::string stripe_preface =
      Preface{.kind = Preface::Kind::kStripe, .stripe = 1, .stripes = 1, .token = first.token}.encode();
  Descriptor stranger = connect_silently();
  write_all(stranger, stripe_preface + fake_greeting("wrong", {}));
  EXPECT_TRUE(is_closed_by_server(stranger));
  Descriptor stripe = connect_silently();
  write_all(stripe, stripe_preface + greeting());
  // "ready" arrives when all stripes have joined.
  const std::size_t kReadyBytes = encode_control_frame("x").size();
  std::string ready(64 + kReadyBytes, '\0');
  EXPECT_EQ(::recv(connection.get(), ready.data(), ready.size(), MSG_WAITALL),
            static_cast<ssize_t>(ready.size()));
}

TEST_F(HostileHandshake, TwoHandshakesWithTheSameTokenMakeOneConnection) {
  const std::string bytes = preface().encode();
  Descriptor first = connect_silently(), second = connect_silently();
  write_all(first, bytes + greeting().substr(0, 10));
  write_all(second, bytes + greeting().substr(0, 10));
  write_all(second, greeting().substr(10));
  listener(0);
  write_all(first, greeting().substr(10));
  EXPECT_TRUE(is_closed_by_server(first));
  write_all(second, encode_frame_start(Message()));
  EXPECT_EQ(listener(0)->wait_for_messages(1).size(), 1u);
  EXPECT_EQ(listener_count(), 1u);
}

TEST_F(HostileHandshake, AnotherProtocolGetsItsSocketsBesideCredentials) {
  std::atomic<bool> taken{false};
  TcpOptions options = secured_options();
  options.other_protocol = std::make_shared<const OtherProtocol>(OtherProtocol{
      .first_bytes = "abc", .take_in_loop = [&](Descriptor, const std::string&) { taken = true; }});
  server_->shutdown();
  start(options);
  Descriptor socket = connect_silently();
  write_all(socket, "abc" + std::string(Preface::kBytes, 'x'));
  EXPECT_TRUE(is_closed_by_server(socket));
  EXPECT_TRUE(taken);
}

TEST_F(HostileHandshake, TooManyConnectionsOfAnAddressAreRefusedWithAReason) {
  TcpOptions options = server_options();
  options.limits.max_connections_per_address = 2;
  server_->shutdown();
  start(options);
  auto client = make_tcp_transport();
  std::vector<std::shared_ptr<RecordingListener>> at_client;
  std::vector<std::shared_ptr<Connection>> connections;
  for (int i = 0; i < 3; ++i) {
    at_client.push_back(std::make_shared<RecordingListener>());
    auto connection = client->connect(address_, at_client.back(), absl::Seconds(30));
    ASSERT_TRUE(connection.ok()) << connection.status();
    connections.push_back(*connection);
    if (i < 2) listener(static_cast<std::size_t>(i));
  }
  const absl::Status reason = at_client[2]->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnauthenticated) << reason;
  EXPECT_NE(reason.message().find("max_connections_per_address"), std::string::npos) << reason;
  // A place is free when a connection has ended.
  connections[0]->close(absl::CancelledError("done"));
  (void)listener(0)->wait_closed();
  expect_still_serving(2);
  client->shutdown();
}

}  // namespace
}  // namespace gradwire::transport
