#include "gradwire/security/token/token_handshake.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Options = TokenHandshake::Options;
using Role = TokenHandshake::Role;
using Kind = Record::Kind;

const std::string kToken = "0123456789abcdef0123456789abcdef";

Secret key(const std::string& token = kToken) { return handshake_key(Secret(token)); }

Options client_options() {
  return {.role = Role::kClient,
          .purpose = "rpc",
          .name = "a",
          .own_address = "10.0.0.1:5000",
          .peer_address = "10.0.0.2:80",
          .nonce = std::string(32, 'C'),
          .peer = "SERVER"};
}

Options server_options() {
  return {.role = Role::kServer,
          .purpose = "rpc",
          .name = "b",
          .own_address = "10.0.0.2:80",
          .peer_address = "10.0.0.1:5000",
          .nonce = std::string(32, 'S'),
          .peer = "CLIENT"};
}

// One end with the bytes that it receives and sends, as a connection would have it.
class End {
 public:
  End(Secret key, Options options) : handshake_(std::move(key), std::move(options)) {}

  std::string start() { return use(handshake_.start()); }
  // Returns the bytes that it answers.
  std::string receive(const std::string& bytes) {
    std::string answer;
    absl::string_view rest = bytes;
    while (!rest.empty() && !done && failure.ok()) {
      const absl::StatusOr<std::size_t> taken = parser_.add(rest);
      if (!taken.ok()) {
        failure = taken.status();
        return answer;
      }
      rest.remove_prefix(*taken);
      if (parser_.complete()) answer += use(handshake_.receive(parser_.take()));
    }
    return answer;
  }
  std::string message() const { return std::string(failure.message()); }
  const std::string& peer_name() const { return handshake_.peer_name(); }

  bool done = false;
  absl::Status failure;

 private:
  std::string use(const TokenHandshake::Reaction& reaction) {
    EXPECT_TRUE(!reaction.done || reaction.failure.ok());
    done = reaction.done;
    failure = reaction.failure;
    return reaction.send ? reaction.send->encode() : std::string();
  }

  TokenHandshake handshake_;
  RecordParser parser_;
};

// Changes the bytes of a step, as an attacker on the line does: 0 hello, 1 challenge, 2 proof, 3 welcome.
using Attack = std::function<void(int step, std::string& bytes)>;

// Runs a handshake, and returns the bytes that the ends sent.
std::vector<std::string> shake(End& client, End& server, const Attack& attack = nullptr) {
  std::vector<std::string> sent;
  server.start();
  std::string bytes = client.start();
  for (int step = 0; !bytes.empty(); ++step) {
    sent.push_back(bytes);
    if (attack) attack(step, bytes);
    bytes = (step % 2 == 0 ? server : client).receive(bytes);
  }
  return sent;
}

std::vector<std::string> honest_records() {
  End client(key(), client_options());
  End server(key(), server_options());
  return shake(client, server);
}

// Changes the end that a record carries, as an attacker without the token can.
void change_hello(std::string& bytes, const std::function<void(proto::HandshakeEnd&)>& change) {
  proto::HandshakeEnd end;
  ASSERT_TRUE(end.ParseFromString(bytes.substr(Record::kHeaderBytes)));
  change(end);
  bytes = Record{Kind::kHello, end.SerializeAsString()}.encode();
}

void change_challenge(std::string& bytes, const std::function<void(proto::HandshakeEnd&)>& change) {
  proto::HandshakeChallenge challenge;
  proto::HandshakeEnd end;
  ASSERT_TRUE(challenge.ParseFromString(bytes.substr(Record::kHeaderBytes)));
  ASSERT_TRUE(end.ParseFromString(challenge.terms()));
  change(end);
  challenge.set_terms(end.SerializeAsString());
  bytes = Record{Kind::kChallenge, challenge.SerializeAsString()}.encode();
}

// The server fails with this reason, and the client with the same one from the server.
void expect_refusal(const Options& client_options, const Options& server_options, const std::string& reason) {
  End client(key(), client_options);
  End server(key(), server_options);
  shake(client, server);
  EXPECT_FALSE(client.done || server.done);
  EXPECT_TRUE(absl::IsUnauthenticated(client.failure)) << client.failure;
  EXPECT_TRUE(absl::IsUnauthenticated(server.failure)) << server.failure;
  EXPECT_THAT(server.message(), HasSubstr(absl::StrCat(" failed: ", reason)));
  EXPECT_THAT(client.message(), HasSubstr(absl::StrCat(" failed: it refused the connection: ", reason)));
}

// The hexadecimal values come from an implementation of proto/handshake.proto in Python.
TEST(TokenHandshake, HasTheBytesOfTheSpecification) {
  const std::vector<std::string> sent = honest_records();
  ASSERT_EQ(sent.size(), 4u);
  EXPECT_EQ(
      absl::BytesToHexString(sent[0]),
      "4757613101004a00080112037270631a016122204343434343434343434343434343434343434343434343434343434343"
      "4343432a0d31302e302e302e313a35303030320b31302e302e302e323a38303801");
  EXPECT_EQ(absl::BytesToHexString(sent[1].substr(sent[1].size() - 32)),
            "cb39faad049f0ce083515dc988a56c3d88f763fb6cc46c937724120309e2fb58");
  EXPECT_EQ(absl::BytesToHexString(sent[2].substr(sent[2].size() - 32)),
            "41c0c6d301af36d931c77aa9faa2d036f2717cd1303c57bc844ec6607fe1f9d0");
  EXPECT_EQ(sent[3], std::string("GWa1\x04\0\0\0", 8));
}

TEST(TokenHandshake, EndsWithTheNamesOfThePeers) {
  End client(key(), client_options());
  End server(key(), server_options());
  shake(client, server);
  EXPECT_TRUE(client.done) << client.failure;
  EXPECT_TRUE(server.done) << server.failure;
  EXPECT_EQ(client.peer_name(), "b");
  EXPECT_EQ(server.peer_name(), "a");
}

TEST(TokenHandshake, FitsIntoARecordWithTheLongestTexts) {
  Options longest = client_options();
  longest.purpose = std::string(32, 'p');
  longest.name = std::string(255, 'n');
  longest.own_address = std::string(64, '1');
  longest.peer_address = std::string(64, '2');
  Options other = longest;
  other.role = Role::kServer;
  other.nonce = std::string(32, 'S');
  std::swap(other.own_address, other.peer_address);
  End client(key(), longest);
  End server(key(), other);
  shake(client, server);
  EXPECT_TRUE(client.done) << client.failure;
  EXPECT_TRUE(server.done) << server.failure;
}

TEST(TokenHandshake, AnotherTokenIsRefused) {
  for (const std::string& other : {std::string(32, 'x'), kToken + "0", kToken.substr(1)}) {
    End client(key(other), client_options());
    End server(key(), server_options());
    shake(client, server);
    EXPECT_FALSE(client.done);
    EXPECT_FALSE(server.done);
    EXPECT_EQ(
        client.message(),
        "the handshake with \"b\" at SERVER failed: the two processes have different tokens; start both "
        "with the same token, for example with the same file in GRADWIRE_TOKEN_FILE or "
        "SecurityOptions::token_file");
    EXPECT_THAT(server.message(), HasSubstr("the handshake with \"a\" at CLIENT failed: it refused the "
                                            "connection: the two processes have different tokens"));
  }
}

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

TEST(TokenHandshake, AnotherPurposeIsRefusedByName) {
  Options client = client_options(), server = server_options();
  server.purpose = "store";
  expect_refusal(
      client, server,
      "this is the port of a store, not of an rpc worker; give the connecting process the address of "
      "an rpc worker");
  client.purpose = "group";
  expect_refusal(client, server, "this is the port of a store, not of a process group;");
  client.purpose = "rendezvous";
  expect_refusal(client, server, "this is the port of a store, not of \"rendezvous\";");
}

TEST(TokenHandshake, DifferentAddressesAreRefusedWithBoth) {
  Options client = client_options(), server = server_options();
  server.peer_address = "10.9.9.9:7";
  expect_refusal(
      client, server,
      "the connecting process sees a connection from 10.0.0.1:5000 to 10.0.0.2:80, the accepting "
      "process one from 10.9.9.9:7 to 10.0.0.2:80: something between them relays it; if it translates "
      "addresses (NAT), set SecurityOptions::check_addresses = false in both processes");
  server = server_options();
  server.own_address = "";
  expect_refusal(client, server,
                 "the connecting process sees a connection from 10.0.0.1:5000 to 10.0.0.2:80, the accepting "
                 "process one from 10.0.0.1:5000 to (none): something");
}

TEST(TokenHandshake, AddressesAreCheckedIfOneEndAsksForIt) {
  for (const bool client_checks : {false, true}) {
    for (const bool server_checks : {false, true}) {
      Options client_end = client_options(), server_end = server_options();
      server_end.peer_address = "10.9.9.9:7";
      client_end.check_addresses = client_checks;
      server_end.check_addresses = server_checks;
      End client(key(), client_end);
      End server(key(), server_end);
      shake(client, server);
      EXPECT_EQ(client.done, !client_checks && !server_checks);
      EXPECT_EQ(server.done, !client_checks && !server_checks);
    }
  }
}

TEST(TokenHandshake, SocketsWithoutAddressesAgree) {
  Options client_end = client_options(), server_end = server_options();
  client_end.own_address = client_end.peer_address = server_end.own_address = server_end.peer_address = "";
  End client(key(), client_end);
  End server(key(), server_end);
  shake(client, server);
  EXPECT_TRUE(client.done && server.done);
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

TEST(TokenHandshake, AnotherVersionIsRefusedAtBothEnds) {
  const auto message = [](int changed, uint32_t version) {
    End client(key(), client_options());
    End server(key(), server_options());
    shake(client, server, [&](int step, std::string& bytes) {
      const auto change = [&](proto::HandshakeEnd& end) {
        end.Clear();
        end.set_version(version);
      };
      if (step == changed) (changed == 0 ? change_hello : change_challenge)(bytes, change);
    });
    EXPECT_FALSE(client.done || server.done);
    return (changed == 0 ? server : client).message();
  };
  EXPECT_EQ(message(0, 0),
            "the handshake with CLIENT failed: the connecting process speaks version 0 of the handshake, the "
            "accepting process version 1; update Gradwire in the connecting process");
  EXPECT_THAT(message(0, 2),
              HasSubstr("the connecting process speaks version 2 of the handshake, the accepting "
                        "process version 1; update Gradwire in the accepting process"));
  EXPECT_EQ(message(1, 0),
            "the handshake with SERVER failed: the connecting process speaks version 1 of the handshake, the "
            "accepting process version 0; update Gradwire in the accepting process");
  EXPECT_THAT(message(1, 9),
              HasSubstr("the connecting process speaks version 1 of the handshake, the accepting "
                        "process version 9; update Gradwire in the connecting process"));
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

TEST(TokenHandshake, RecordsInAnotherOrderAreRefused) {
  const std::vector<std::string> records = honest_records();
  for (const Role role : {Role::kClient, Role::kServer}) {
    for (const int first : {0, 1, 2, 3}) {
      if (first == (role == Role::kClient ? 1 : 0)) continue;
      End end(key(), role == Role::kClient ? client_options() : server_options());
      end.start();
      end.receive(records[first]);
      EXPECT_FALSE(end.done);
      EXPECT_THAT(end.message(), HasSubstr("malformed handshake: got the record \""));
    }
  }
  // The welcome before the client's own proof was asked for, and a second hello.
  End server(key(), server_options());
  server.start();
  server.receive(records[0]);
  server.receive(records[0]);
  EXPECT_FALSE(server.done);
  EXPECT_EQ(
      server.message(),
      "the handshake with \"a\" at CLIENT failed: malformed handshake: got the record \"hello\", expected "
      "\"proof\"");
}

TEST(TokenHandshake, NothingIsAcceptedBeforeTheStartAndAfterTheEnd) {
  const std::vector<std::string> bytes = honest_records();
  std::vector<Record> records;
  RecordParser parser;
  for (const std::string& each : bytes) {
    ASSERT_TRUE(parser.add(each).ok());
    records.push_back(parser.take());
  }
  TokenHandshake unstarted(key(), client_options());
  EXPECT_TRUE(absl::IsFailedPrecondition(unstarted.receive(records[1]).failure));

  TokenHandshake failed(key(), client_options());
  failed.start();
  EXPECT_TRUE(absl::IsUnauthenticated(failed.receive(records[3]).failure));
  EXPECT_TRUE(absl::IsFailedPrecondition(failed.receive(records[1]).failure));

  TokenHandshake client(key(), client_options());
  client.start();
  client.receive(records[1]);
  EXPECT_TRUE(client.receive(records[3]).done);
  TokenHandshake server(key(), server_options());
  server.start();
  server.receive(records[0]);
  EXPECT_TRUE(server.receive(records[2]).done);
  for (TokenHandshake* end : {&client, &server}) {
    for (const Record& record : records) {
      const TokenHandshake::Reaction reaction = end->receive(record);
      EXPECT_TRUE(absl::IsFailedPrecondition(reaction.failure));
      EXPECT_FALSE(reaction.done || reaction.send.has_value());
    }
  }
}

TEST(TokenHandshake, AnOwnOptionOutsideItsBoundsIsRefused) {
  const auto failure = [](const std::function<void(Options&)>& change) {
    Options options = client_options();
    change(options);
    TokenHandshake handshake(key(), options);
    const TokenHandshake::Reaction reaction = handshake.start();
    EXPECT_FALSE(reaction.send.has_value());
    EXPECT_TRUE(absl::IsInvalidArgument(reaction.failure)) << reaction.failure;
    return std::string(reaction.failure.message());
  };
  EXPECT_EQ(
      failure([](Options& options) { options.name = std::string(256, 'x'); }),
      "cannot begin the handshake with SERVER: of this process, the name has 256 bytes, expected 0 to 255");
  EXPECT_THAT(failure([](Options& options) { options.name = "two\nlines"; }),
              HasSubstr("the name has bytes that are not printable ASCII"));
  EXPECT_THAT(failure([](Options& options) { options.purpose = ""; }),
              HasSubstr("the purpose has 0 bytes, expected 1 to 32"));
  EXPECT_THAT(failure([](Options& options) { options.nonce = "short"; }),
              HasSubstr("the nonce has 5 bytes, expected 32"));
  EXPECT_THAT(failure([](Options& options) { options.own_address = std::string(65, '1'); }),
              HasSubstr("the own address has 65 bytes, expected 0 to 64"));
}

TEST(TokenHandshake, TextsOfThePeerAreChecked) {
  const auto message = [](const std::function<void(proto::HandshakeEnd&)>& change) {
    End client(key(), client_options());
    End server(key(), server_options());
    shake(client, server, [&](int step, std::string& bytes) {
      if (step == 0) change_hello(bytes, change);
    });
    EXPECT_FALSE(client.done || server.done);
    EXPECT_THAT(client.message(), HasSubstr("it refused the connection: malformed handshake: "));
    return server.message();
  };
  EXPECT_EQ(
      message([](proto::HandshakeEnd& end) { end.set_name(std::string(256, 'x')); }),
      "the handshake with CLIENT failed: malformed handshake: the name has 256 bytes, expected 0 to 255");
  EXPECT_THAT(message([](proto::HandshakeEnd& end) { end.set_name("\x1b[2J"); }),
              HasSubstr("the name has bytes that are not printable ASCII"));
  EXPECT_THAT(message([](proto::HandshakeEnd& end) { end.set_purpose("\xff"); }),
              HasSubstr("the purpose has bytes that are not printable ASCII"));
  EXPECT_THAT(message([](proto::HandshakeEnd& end) { end.set_nonce(std::string(31, 'x')); }),
              HasSubstr("the nonce has 31 bytes, expected 32"));
  EXPECT_THAT(message([](proto::HandshakeEnd& end) { end.set_peer_address(std::string(65, 'x')); }),
              HasSubstr("the peer address has 65 bytes, expected 0 to 64"));
}

TEST(TokenHandshake, MalformedBodiesAreRefused) {
  const std::vector<std::string> names = {"hello", "challenge", "proof"};
  for (int changed = 0; changed < 3; ++changed) {
    End client(key(), client_options());
    End server(key(), server_options());
    shake(client, server, [&](int step, std::string& bytes) {
      if (step == changed) bytes = Record{static_cast<Kind>(step + 1), "\xff\xff"}.encode();
    });
    EXPECT_FALSE(client.done || server.done);
    EXPECT_THAT((changed == 1 ? client : server).message(),
                HasSubstr(absl::StrCat("malformed handshake: the ", names[changed], " cannot be parsed")));
  }
}

TEST(TokenHandshake, ARefusalIsShownWithoutItsControlCharacters) {
  End client(key(), client_options());
  client.start();
  client.receive(Record{Kind::kRefusal, "go\naway\x1b[2J"}.encode());
  EXPECT_EQ(client.message(), "the handshake with SERVER failed: it refused the connection: go?away?[2J");
  EXPECT_TRUE(absl::IsUnauthenticated(client.failure));
}

}  // namespace
}  // namespace gradwire::security
