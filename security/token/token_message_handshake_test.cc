#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/token/record.h"
#include "gradwire/security/token/token_credentials.h"
#include "gtest/gtest.h"

namespace gradwire::security {
namespace {

using ::testing::HasSubstr;
using Reaction = MessageHandshake::Reaction;

constexpr char kTokenOfJob[] = "a token of the job, of 32 bytes at least";
constexpr char kOtherToken[] = "another token of the job, of 32 bytes";

struct Ends {
  std::unique_ptr<MessageHandshake> client;
  std::unique_ptr<MessageHandshake> server;
};

std::unique_ptr<MessageHandshake> end(const char* token, const MessageChannel& channel) {
  return (*make_token_credentials(Secret(token), true))
      ->for_messages(channel, {.purpose = "rpc",
                               .own_name = channel.accepted ? "server" : "client",
                               .peer_address = channel.peer_address});
}

Ends ends(const char* client_token, const char* server_token) {
  return {end(client_token, {.own_address = "10.0.0.1:4", .peer_address = "10.0.0.2:5"}),
          end(server_token, {.accepted = true, .own_address = "10.0.0.2:5", .peer_address = "10.0.0.1:4"})};
}

// The reactions of both ends, alternately, from the client's start until an end sends nothing.
std::vector<Reaction> talk(const Ends& ends) {
  EXPECT_TRUE(ends.server->start().failure.ok());
  std::vector<Reaction> reactions = {ends.client->start()};
  for (bool to_server = true; !reactions.back().send.empty(); to_server = !to_server) {
    reactions.push_back((to_server ? ends.server : ends.client)->receive(reactions.back().send));
  }
  return reactions;
}

TEST(TokenMessageHandshake, EndsWithFourMessagesAndTheNamesOfThePeers) {
  const Ends both = ends(kTokenOfJob, kTokenOfJob);
  const std::vector<Reaction> reactions = talk(both);
  ASSERT_EQ(reactions.size(), 5u);
  for (const Reaction& reaction : reactions) EXPECT_TRUE(reaction.failure.ok()) << reaction.failure;
  EXPECT_TRUE(reactions[3].done);
  EXPECT_TRUE(reactions[4].done);
  EXPECT_EQ(both.client->peer().proof, PeerIdentity::Proof::kToken);
  EXPECT_EQ(both.client->peer().name, "server");
  EXPECT_EQ(both.server->peer().name, "client");
}

TEST(TokenMessageHandshake, AnotherTokenIsRefusedAtBothEnds) {
  const std::vector<Reaction> reactions = talk(ends(kTokenOfJob, kOtherToken));
  ASSERT_EQ(reactions.size(), 4u);
  for (std::size_t i : {2u, 3u}) {
    EXPECT_EQ(reactions[i].failure.code(), absl::StatusCode::kUnauthenticated);
    EXPECT_THAT(std::string(reactions[i].failure.message()), HasSubstr("have different tokens"));
    EXPECT_FALSE(reactions[i].done);
  }
}

TEST(TokenMessageHandshake, AddressesThatDifferAreRefused) {
  Ends both = ends(kTokenOfJob, kTokenOfJob);
  both.server =
      end(kTokenOfJob, {.accepted = true, .own_address = "10.0.0.2:5", .peer_address = "10.0.0.3:4"});
  const std::vector<Reaction> reactions = talk(both);
  EXPECT_EQ(reactions.back().failure.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(reactions.back().failure.message()), HasSubstr("10.0.0.3:4"));
}

TEST(TokenMessageHandshake, AMessageIsExactlyOneRecord) {
  const std::string hello = ends(kTokenOfJob, kTokenOfJob).client->start().send;
  const std::string bad[] = {"",          "GWa1",  hello.substr(0, hello.size() - 1),
                             hello + "x", "GET /", hello + hello};
  for (const std::string& message : bad) {
    const Ends both = ends(kTokenOfJob, kTokenOfJob);
    both.server->start();
    const Reaction reaction = both.server->receive(message);
    EXPECT_EQ(reaction.failure.code(), absl::StatusCode::kUnauthenticated) << message;
    EXPECT_THAT(std::string(reaction.failure.message()), HasSubstr("malformed record")) << message;
    EXPECT_FALSE(reaction.send.empty());
    EXPECT_FALSE(both.server->receive(hello).failure.ok());
  }
}

TEST(TokenMessageHandshake, OnlyATokenHasIt) {
  for (const CredentialsPtr& credentials : {no_credentials(), insecure_credentials()}) {
    EXPECT_EQ(credentials->for_messages({}, {.purpose = "rpc"}), nullptr);
  }
}

}  // namespace
}  // namespace gradwire::security
