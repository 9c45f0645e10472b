// Recorded messages that are sent again, messages that are sent back, and messages that come too early.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/proto/handshake.pb.h"
#include "gradwire/security/token/record.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/security/protection.h"
#include "gradwire/tests/security/raw_socket.h"
#include "gradwire/tests/security/relay.h"
#include "gradwire/transport/tcp/wire/preface.h"

namespace gradwire {
namespace {

using security::Record;
using security::RecordParser;
using transport::Preface;
using Way = Relay::Way;

class Attacked : public ::testing::TestWithParam<Protection> {
 protected:
  SecurityOptions security() const { return member(GetParam(), /*relayed=*/true); }

  // The bytes that an honest client and the store have sent to each other.
  struct Recording {
    std::string client;
    std::string server;
  };
  static Recording record(int store_port, const SecurityOptions& security) {
    Relay relay(store_port);
    const auto client = open_store(relay.port(), security);
    EXPECT_TRUE(client.ok()) << client.status();
    (*client)->set("recorded", "value");
    return {relay.seen(Way::kToServer), relay.seen(Way::kToClient)};
  }

  store::TcpStore store_{"127.0.0.1", 0, {.is_master = true, .security = security()}};
};

// The records in the answer of a server.
std::vector<Record> records_in(absl::string_view bytes) {
  std::vector<Record> records;
  RecordParser parser;
  while (!bytes.empty()) {
    const auto taken = parser.add(bytes);
    if (!taken.ok()) break;
    bytes.remove_prefix(*taken);
    if (parser.complete()) records.push_back(parser.take());
  }
  return records;
}

TEST_P(Attacked, RecordedClientIsRefused) {
  const Recording recording = record(store_.port(), security());
  ASSERT_TRUE(store_.delete_key("recorded"));
  RawSocket attacker = RawSocket::connect(store_.port());
  attacker.send(recording.client);
  const RawSocket::Rest answer = attacker.receive_until_closed();
  EXPECT_TRUE(answer.closed);
  for (const Record& record : records_in(answer.bytes)) EXPECT_NE(record.kind, Record::Kind::kWelcome);
  EXPECT_EQ(store_.num_keys(), 0);
}

// A server of the attacker that answers each client with these bytes, or with what the client says.
class FalseServer {
 public:
  explicit FalseServer(std::string answer, bool reflects = false) {
    listener_ = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = RawSocket::loopback(0);
    socklen_t length = sizeof(address);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(listener_.get(), 16), 0);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, answer = std::move(answer), reflects] {
      while (true) {
        Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!socket.valid()) return;
        serve(std::move(socket), answer, reflects);
      }
    });
  }
  ~FalseServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  int port() const { return port_; }

 private:
  static void serve(Descriptor accepted, const std::string& answer, bool reflects) {
    RawSocket socket(std::move(accepted));
    const std::string preface = socket.receive(Preface::kBytes);
    if (preface.size() < Preface::kBytes) return;
    socket.send(answer);
    char part[4096];
    ssize_t got = 0;
    while ((got = ::recv(socket.get(), part, sizeof(part), 0)) > 0) {
      if (reflects) socket.send({part, static_cast<std::size_t>(got)});
    }
  }

  Descriptor listener_;
  int port_ = 0;
  std::thread thread_;
};

TEST_P(Attacked, RecordedServerIsNotUsed) {
  const Recording recording = record(store_.port(), security());
  const FalseServer server(recording.server);
  const auto refused = open_store(server.port(), security(), absl::Seconds(5));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnauthenticated) << refused.status();
}

TEST_P(Attacked, ClientThatMeetsItsOwnMessagesStops) {
  const FalseServer server("", /*reflects=*/true);
  const auto refused = open_store(server.port(), security(), absl::Seconds(5));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnauthenticated) << refused.status();
}

TEST_P(Attacked, ServerThatMeetsItsOwnMessagesCloses) {
  RawSocket attacker = RawSocket::connect(store_.port());
  const Preface::Proof proof =
      GetParam() == Protection::kToken ? Preface::Proof::kToken : Preface::Proof::kCertificate;
  attacker.send(Preface{.proof = proof, .token = transport::random_token()}.encode());
  if (GetParam() == Protection::kToken) {
    // A good hello, and then the server's proof as one's own.
    proto::HandshakeEnd hello;
    hello.set_version(1);
    hello.set_purpose("store");
    hello.set_nonce(std::string(32, 'n'));
    attacker.send(Record{Record::Kind::kHello, hello.SerializeAsString()}.encode());
    const std::string head = attacker.receive(Record::kHeaderBytes);
    ASSERT_EQ(head.size(), Record::kHeaderBytes);
    proto::HandshakeChallenge challenge;
    ASSERT_TRUE(challenge.ParseFromString(attacker.receive(
        static_cast<unsigned char>(head[6]) + std::size_t{256} * static_cast<unsigned char>(head[7]))));
    ASSERT_EQ(challenge.proof().size(), 32);
    proto::HandshakeProof proof_message;
    proof_message.set_proof(challenge.proof());
    attacker.send(Record{Record::Kind::kProof, proof_message.SerializeAsString()}.encode());
  } else {
    // The ServerHello of a recorded connection.
    attacker.send(record(store_.port(), security()).server);
    ASSERT_TRUE(store_.delete_key("recorded"));
  }
  const RawSocket::Rest answer = attacker.receive_until_closed();
  EXPECT_TRUE(answer.closed);
  for (const Record& record : records_in(answer.bytes)) EXPECT_EQ(record.kind, Record::Kind::kRefusal);
  EXPECT_EQ(store_.num_keys(), 0);
}

// A whole session with a store that demands no proof, whose requests are good.
TEST_P(Attacked, RequestsBeforeTheEndOfTheHandshakeAreNotHandled) {
  std::string requests;
  {
    store::TcpStore open("127.0.0.1", 0, {.is_master = true, .security = {.insecure = true}});
    requests = record(open.port(), {.insecure = true}).client;
    EXPECT_EQ(open.num_keys(), 1);
  }
  ASSERT_GT(requests.size(), Preface::kBytes + 20);
  const std::string frames = requests.substr(Preface::kBytes);
  const std::string own = record(store_.port(), security()).client;
  ASSERT_TRUE(store_.delete_key("recorded"));
  for (const std::string& bytes : {
           // Without a proof at all.
           requests,
           // In place of the handshake, and behind its first message.
           own.substr(0, Preface::kBytes) + frames,
           own.substr(0, Preface::kBytes + 40) + frames,
           own.substr(0, own.size() / 2) + frames,
       }) {
    RawSocket attacker = RawSocket::connect(store_.port());
    attacker.send(bytes);
    attacker.end_writes();
    EXPECT_TRUE(attacker.receive_until_closed().closed);
    EXPECT_EQ(store_.num_keys(), 0);
  }
}

TEST_P(Attacked, ServerThatSkipsTheHandshakeIsNotUsed) {
  // The answers of a store that demands no proof, and a welcome without a challenge.
  store::TcpStore open("127.0.0.1", 0, {.is_master = true, .security = {.insecure = true}});
  for (const std::string& answer : {record(open.port(), {.insecure = true}).server,
                                    Record{Record::Kind::kWelcome, ""}.encode(), std::string(100, '\0')}) {
    const FalseServer server(answer);
    const auto refused = open_store(server.port(), security(), absl::Seconds(5));
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnauthenticated) << refused.status();
  }
}

TEST_P(Attacked, OversizeHandshakesAreRefused) {
  const std::string own = record(store_.port(), security()).client;
  ASSERT_TRUE(store_.delete_key("recorded"));
  const std::string preface = own.substr(0, Preface::kBytes);
  // Each announces more than it may, or never ends.
  std::string one_after_the_other;
  for (int i = 0; i < 5000; ++i) one_after_the_other += std::string("\x16\x03\x03\x00\x01\x00", 6);
  for (const std::string& bytes : {
           std::string("GWa1\x01\x00\x01\x04", 8),
           std::string("GWa1\x01\x00\xff\xff", 8) + std::string(70'000, 'x'),
           std::string("\x16\x03\x01\xff\xff\x01\x00\xff\xfc", 9) + std::string(200'000, 'x'),
           std::string("\x16\x03\x01\x00\x04\x01\x01\x00\x00", 9) + one_after_the_other,
       }) {
    RawSocket attacker = RawSocket::connect(store_.port());
    attacker.send(preface + bytes);
    attacker.end_writes();
    EXPECT_TRUE(attacker.receive_until_closed().closed);
  }
  EXPECT_EQ(store_.num_keys(), 0);
  EXPECT_TRUE(open_store(store_.port(), security()).ok());
}

TEST_P(Attacked, PrefacesOfAnotherVersionOrProofAreRefused) {
  const std::string own = record(store_.port(), security()).client;
  ASSERT_TRUE(store_.delete_key("recorded"));
  for (const auto& [position, value] :
       std::vector<std::pair<std::size_t, char>>{{4, 0},
                                                 {4, 1},
                                                 {4, 3},
                                                 {4, '\xff'},
                                                 {5, 0},
                                                 {5, 0x30},
                                                 {5, GetParam() == Protection::kToken ? 0x20 : 0x10}}) {
    std::string bytes = own;
    bytes[position] = value;
    RawSocket attacker = RawSocket::connect(store_.port());
    attacker.send(bytes);
    const RawSocket::Rest answer = attacker.receive_until_closed();
    EXPECT_TRUE(answer.closed);
    const std::vector<Record> records = records_in(answer.bytes);
    ASSERT_EQ(records.size(), 1) << position << " " << static_cast<int>(value);
    EXPECT_EQ(records[0].kind, Record::Kind::kRefusal);
    EXPECT_EQ(store_.num_keys(), 0);
  }
}

// The relay says to each end that the other one has no security, or another version.
TEST_P(Attacked, DowngradeOnTheWayEndsTheConnection) {
  for (const auto& [position, bits] :
       std::vector<std::pair<std::size_t, char>>{{4, 3}, {5, 0x10}, {5, 0x20}, {5, 0x30}}) {
    Relay relay(store_.port(), Relay::flip(Way::kToServer, position, bits));
    const auto refused = open_store(relay.port(), security(), absl::Seconds(5));
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnauthenticated) << refused.status();
  }
  EXPECT_EQ(store_.num_keys(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, Attacked, ::testing::Values(Protection::kToken, Protection::kCertificates),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace gradwire
