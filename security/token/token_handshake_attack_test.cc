// The token handshake with somebody between the ends, or at one of them, who does not have the token.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/security/token/token_handshake_ends.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

using ::testing::HasSubstr;
using Options = TokenHandshake::Options;
using Kind = Record::Kind;

// A client without the token that does not check the server's proof.
TEST(TokenHandshake, AClientWithoutTheTokenIsRefused) {
  for (const std::size_t size : {0, 31, 32, 33}) {
    End client(key(), client_options());
    End server(key(), server_options());
    shake(client, server, [size](int step, std::string& bytes) {
      if (step != 2) return;
      proto::HandshakeProof proof;
      proof.set_proof(std::string(size, 'x'));
      bytes = Record{Kind::kProof, proof.SerializeAsString()}.encode();
    });
    EXPECT_FALSE(server.done);
    EXPECT_THAT(server.message(), HasSubstr("the two processes have different tokens"));
    EXPECT_FALSE(client.done);
  }
}

// A process without the token sits between two connections and passes the records on. It cannot change the
// addresses in them, even if the ends would accept the addresses that it puts there.
TEST(TokenHandshake, ARelayIsRefused) {
  Options client_end = client_options(), server_end = server_options();
  client_end.peer_address = "10.6.6.6:80";
  server_end.peer_address = "10.6.6.6:9999";
  {
    End client(key(), client_end);
    End server(key(), server_end);
    shake(client, server);
    EXPECT_FALSE(client.done || server.done);
    EXPECT_THAT(server.message(), HasSubstr("something between them relays it"));
  }
  End client(key(), client_end);
  End server(key(), server_end);
  shake(client, server, [](int step, std::string& bytes) {
    if (step == 0) {
      change_hello(bytes, [](proto::HandshakeEnd& end) {
        end.set_own_address("10.6.6.6:9999");
        end.set_peer_address("10.0.0.2:80");
      });
    } else if (step == 1) {
      change_challenge(bytes, [](proto::HandshakeEnd& end) {
        end.set_own_address("10.6.6.6:80");
        end.set_peer_address("10.0.0.1:5000");
      });
    }
  });
  EXPECT_FALSE(client.done || server.done);
  EXPECT_THAT(client.message(), HasSubstr("the two processes have different tokens"));
}

TEST(TokenHandshake, TheCheckOfAddressesCannotBeTurnedOffOnTheWay) {
  Options client_end = client_options(), server_end = server_options();
  client_end.peer_address = "10.6.6.6:80";
  server_end.peer_address = "10.6.6.6:9999";
  // Only the client checks. The server does not learn of it, and proves what it has received.
  server_end.check_addresses = false;
  End client(key(), client_end);
  End server(key(), server_end);
  shake(client, server, [](int step, std::string& bytes) {
    if (step == 0) change_hello(bytes, [](proto::HandshakeEnd& end) { end.set_check_addresses(false); });
  });
  EXPECT_FALSE(client.done || server.done);
  EXPECT_THAT(client.message(), HasSubstr("something between them relays it"));
}

TEST(TokenHandshake, EachFieldThatChangesOnTheWayIsRefused) {
  using Change = std::function<void(proto::HandshakeEnd&)>;
  const std::map<std::string, Change> changes = {
      {"version", [](proto::HandshakeEnd& end) { end.set_version(2); }},
      {"purpose", [](proto::HandshakeEnd& end) { end.set_purpose("store"); }},
      {"name", [](proto::HandshakeEnd& end) { end.set_name("c"); }},
      {"no name", [](proto::HandshakeEnd& end) { end.clear_name(); }},
      {"nonce", [](proto::HandshakeEnd& end) { end.set_nonce(std::string(32, 'X')); }},
      {"own address", [](proto::HandshakeEnd& end) { end.set_own_address("10.0.0.3:80"); }},
      {"peer address", [](proto::HandshakeEnd& end) { end.set_peer_address("10.0.0.3:80"); }},
      {"unknown field",
       [](proto::HandshakeEnd& end) { end.GetReflection()->MutableUnknownFields(&end)->AddVarint(100, 1); }}};
  for (const auto& [name, change] : changes) {
    for (const int changed : {0, 1}) {
      SCOPED_TRACE(absl::StrCat(name, " in record ", changed));
      Options client_end = client_options(), server_end = server_options();
      client_end.check_addresses = server_end.check_addresses = false;
      End client(key(), client_end);
      End server(key(), server_end);
      shake(client, server, [&, &change = change](int step, std::string& bytes) {
        if (step == changed) (changed == 0 ? change_hello : change_challenge)(bytes, change);
      });
      EXPECT_FALSE(client.done || server.done);
      EXPECT_TRUE(absl::IsUnauthenticated(client.failure)) << client.failure;
      EXPECT_TRUE(absl::IsUnauthenticated(server.failure)) << server.failure;
    }
  }
}

TEST(TokenHandshake, EachFlippedBitIsRefused) {
  // Addresses are not compared here: the proofs alone must show the change.
  Options client_end = client_options(), server_end = server_options();
  client_end.check_addresses = server_end.check_addresses = false;
  End honest_client(key(), client_end);
  End honest_server(key(), server_end);
  const std::vector<std::string> records = shake(honest_client, honest_server);
  ASSERT_EQ(records.size(), 4u);
  int flips = 0;
  for (int changed = 0; changed < 4; ++changed) {
    for (std::size_t bit = 0; bit < records[changed].size() * 8; ++bit, ++flips) {
      SCOPED_TRACE(absl::StrCat("record ", changed, ", bit ", bit));
      End client(key(), client_end);
      End server(key(), server_end);
      shake(client, server, [&](int step, std::string& bytes) {
        if (step == changed) bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
      });
      EXPECT_FALSE(client.done);
      // The server is done when it sends the last record.
      EXPECT_EQ(server.done, changed == 3);
    }
  }
  EXPECT_GT(flips, 1500);
}

TEST(TokenHandshake, EachTruncatedRecordIsRefused) {
  const std::vector<std::string> records = honest_records();
  for (int changed = 0; changed < 4; ++changed) {
    for (std::size_t size = 0; size < records[changed].size(); ++size) {
      End client(key(), client_options());
      End server(key(), server_options());
      shake(client, server, [&](int step, std::string& bytes) {
        if (step == changed) bytes.resize(size);
      });
      EXPECT_FALSE(client.done) << changed << " " << size;
      EXPECT_EQ(server.done, changed == 3);
    }
  }
}

// The attacker has recorded a handshake and plays one of its ends again.
TEST(TokenHandshake, RecordedRecordsAreWorthNothing) {
  const std::vector<std::string> recorded = honest_records();
  {
    Options options = server_options();
    options.nonce = std::string(32, 'T');
    End server(key(), options);
    server.start();
    server.receive(recorded[0]);
    server.receive(recorded[2]);
    EXPECT_FALSE(server.done);
    EXPECT_THAT(server.message(), HasSubstr("the two processes have different tokens"));
  }
  Options options = client_options();
  options.nonce = std::string(32, 'D');
  End client(key(), options);
  client.start();
  client.receive(recorded[1]);
  client.receive(recorded[3]);
  EXPECT_FALSE(client.done);
  EXPECT_THAT(client.message(), HasSubstr("the two processes have different tokens"));
}

TEST(TokenHandshake, TheSameRecordsForAnotherPurposeAreRefused) {
  // The client wants a store, and the attacker leads it to an rpc port with the right purpose in the hello.
  Options options = client_options();
  options.purpose = "store";
  End client(key(), options);
  End server(key(), server_options());
  shake(client, server, [](int step, std::string& bytes) {
    if (step == 0) change_hello(bytes, [](proto::HandshakeEnd& end) { end.set_purpose("rpc"); });
    if (step == 1) change_challenge(bytes, [](proto::HandshakeEnd& end) { end.set_purpose("store"); });
  });
  EXPECT_FALSE(client.done || server.done);
  EXPECT_THAT(client.message(), HasSubstr("the two processes have different tokens"));
}

TEST(TokenHandshake, AnEndDoesNotAnswerItsOwnChallenge) {
  // 1. The hello of a client comes back to it.
  End client(key(), client_options());
  proto::HandshakeChallenge challenge;
  challenge.set_terms(client.start().substr(Record::kHeaderBytes));
  client.receive(Record{Kind::kChallenge, challenge.SerializeAsString()}.encode());
  EXPECT_FALSE(client.done);
  EXPECT_THAT(
      client.message(),
      HasSubstr("the connecting process received its own nonce: something sends its messages back to it; "
                "give the connecting process the address of another process"));
  // 2. The attacker, without the token, connects to a server, and sends it back its proof as that of a
  // client.
  End server(key(), server_options());
  End asker(key(std::string(32, '?')), client_options());
  server.start();
  ASSERT_TRUE(challenge.ParseFromString(server.receive(asker.start()).substr(Record::kHeaderBytes)));
  proto::HandshakeProof proof;
  proof.set_proof(challenge.proof());
  server.receive(Record{Kind::kProof, proof.SerializeAsString()}.encode());
  EXPECT_FALSE(server.done);
  EXPECT_THAT(server.message(), HasSubstr("the two processes have different tokens"));
}

// A process connects to itself: to an attacker that passes the records on to the process's own port.
TEST(TokenHandshake, ARelayToTheProcessItselfIsRefused) {
  Options own_server = server_options();
  own_server.name = "a";
  own_server.peer_address = "10.6.6.6:1";
  End client(key(), client_options());
  End server(key(), own_server);
  shake(client, server);
  EXPECT_FALSE(client.done || server.done);
  EXPECT_THAT(server.message(), HasSubstr("something between them relays it"));
}

}  // namespace
}  // namespace gradwire::security
