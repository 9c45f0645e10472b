// The handshake of two processes of a job, or of two that are set up differently.
#include "gradwire/security/token/token_handshake.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/security/token/token_handshake_ends.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

using ::testing::HasSubstr;
using Options = TokenHandshake::Options;
using Role = TokenHandshake::Role;

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

}  // namespace
}  // namespace gradwire::security
