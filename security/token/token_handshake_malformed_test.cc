// The token handshake with records that no process of Gradwire sends.
#include <functional>
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
using Role = TokenHandshake::Role;
using Kind = Record::Kind;

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
