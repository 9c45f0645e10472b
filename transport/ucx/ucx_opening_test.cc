#include "gradwire/transport/ucx/ucx_opening.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/token/record.h"
#include "gradwire/security/token/token_credentials.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

using security::PeerIdentity;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = UcxHead::Kind;
using Outgoing = UcxOpening::Outgoing;
using Reaction = UcxOpening::Reaction;

constexpr char kToken[] = "a token of the job, of 32 bytes at least";
constexpr char kOtherToken[] = "another token of the job, of 32 bytes";

// One end, whose credentials are a token, or insecure ones if `token` is nullptr.
UcxOpening opening(bool accepted, const char* token) {
  const security::CredentialsPtr credentials =
      token == nullptr ? security::insecure_credentials()
                       : *security::make_token_credentials(security::Secret(token), true);
  const std::string client = "10.0.0.1:4", server = "10.0.0.2:5";
  const std::string peer = accepted ? client : server;
  return UcxOpening(
      {.accepted = accepted,
       .handshake = credentials->for_messages(
           {.accepted = accepted, .own_address = accepted ? server : client, .peer_address = peer},
           {.purpose = "rpc", .own_name = accepted ? "server" : "client", .peer_address = peer}),
       .peer = peer});
}

absl::string_view view(const std::array<char, UcxHead::kBytes>& bytes) {
  return {bytes.data(), bytes.size()};
}

Reaction receive(UcxOpening& end, const UcxHead& head, absl::string_view data) {
  EXPECT_TRUE(end.arrive(view(head.encode()), data.data(), data.size(), false));
  return end.advance();
}
Reaction receive(UcxOpening& end, const Outgoing& message) {
  return receive(end, message.head, message.data);
}

// The reactions of both ends, alternately, from the client's start until an end sends nothing.
std::vector<Reaction> talk(UcxOpening& client, UcxOpening& server) {
  const Reaction first = server.start();
  EXPECT_FALSE(first.send.has_value());
  EXPECT_TRUE(first.failure.ok());
  std::vector<Reaction> reactions = {client.start()};
  for (bool to_server = true; reactions.back().send.has_value(); to_server = !to_server) {
    reactions.push_back(receive(to_server ? server : client, *reactions.back().send));
  }
  return reactions;
}

std::vector<Kind> kinds(const std::vector<Reaction>& reactions) {
  std::vector<Kind> result;
  for (const Reaction& reaction : reactions) {
    if (reaction.send.has_value()) result.push_back(reaction.send->head.kind);
  }
  return result;
}

std::string refusal_in(const Reaction& reaction) {
  if (!reaction.send.has_value() || reaction.send->head.kind != Kind::kHandshake) return "(none)";
  security::RecordParser parser;
  if (!parser.add(reaction.send->data).ok() || !parser.complete()) return "(malformed)";
  const security::Record record = parser.take();
  return record.kind == security::Record::Kind::kRefusal ? record.sentence() : "(another record)";
}

// A server with a token that waits for the first message.
UcxOpening waiting_server() {
  UcxOpening server = opening(true, kToken);
  EXPECT_TRUE(server.start().failure.ok());
  return server;
}

TEST(UcxOpening, WithoutATokenBothEndsSayHello) {
  UcxOpening client = opening(false, nullptr), server = opening(true, nullptr);
  const std::vector<Reaction> reactions = talk(client, server);
  EXPECT_EQ(kinds(reactions), (std::vector<Kind>{Kind::kHello, Kind::kHello}));
  ASSERT_EQ(reactions.size(), 3u);
  EXPECT_TRUE(reactions[1].done);
  EXPECT_TRUE(reactions[2].done);
  EXPECT_EQ(server.peer().proof, PeerIdentity::Proof::kNone);
}

TEST(UcxOpening, WithATokenAHandshakePrecedesTheHellos) {
  UcxOpening client = opening(false, kToken), server = opening(true, kToken);
  const std::vector<Reaction> reactions = talk(client, server);
  EXPECT_EQ(kinds(reactions), (std::vector<Kind>{Kind::kHandshake, Kind::kHandshake, Kind::kHandshake,
                                                 Kind::kHandshake, Kind::kHello, Kind::kHello}));
  ASSERT_EQ(reactions.size(), 7u);
  for (std::size_t i = 0; i < reactions.size(); ++i) {
    EXPECT_TRUE(reactions[i].failure.ok()) << reactions[i].failure;
    EXPECT_EQ(reactions[i].done, i >= 5) << i;
  }
  EXPECT_EQ(client.peer().proof, PeerIdentity::Proof::kToken);
  EXPECT_EQ(client.peer().name, "server");
  EXPECT_EQ(server.peer().name, "client");
}

TEST(UcxOpening, AnotherTokenIsRefusedAtBothEnds) {
  UcxOpening client = opening(false, kOtherToken), server = opening(true, kToken);
  const std::vector<Reaction> reactions = talk(client, server);
  ASSERT_EQ(reactions.size(), 4u);
  for (std::size_t i : {2u, 3u}) {
    EXPECT_EQ(reactions[i].failure.code(), absl::StatusCode::kUnauthenticated);
    EXPECT_THAT(std::string(reactions[i].failure.message()),
                AllOf(HasSubstr("different tokens"), HasSubstr("GRADWIRE_TOKEN_FILE")));
  }
  EXPECT_FALSE(reactions[3].send.has_value());
}

TEST(UcxOpening, ATokenAtOneEndIsRefusedAtBothEnds) {
  for (const bool client_has_it : {false, true}) {
    UcxOpening client = opening(false, client_has_it ? kToken : nullptr);
    UcxOpening server = opening(true, client_has_it ? nullptr : kToken);
    const std::vector<Reaction> reactions = talk(client, server);
    ASSERT_EQ(reactions.size(), 3u);
    for (std::size_t i : {1u, 2u}) {
      EXPECT_EQ(reactions[i].failure.code(), absl::StatusCode::kUnauthenticated);
      EXPECT_THAT(
          std::string(reactions[i].failure.message()),
          HasSubstr(client_has_it
                        ? "the connecting process has a token, the accepting process has no credentials; give"
                        : "the connecting process has no credentials, the accepting process has a token; "
                          "give"));
    }
  }
}

TEST(UcxOpening, AConnectingEndWithATokenDoesNotAnswerAHello) {
  UcxOpening client = opening(false, kToken);
  ASSERT_TRUE(client.start().failure.ok());
  const Reaction reaction = receive(client, {Kind::kHello, 0, 0, 0}, "");
  EXPECT_EQ(reaction.failure.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(refusal_in(reaction), HasSubstr("the accepting process has no credentials"));
}

TEST(UcxOpening, FramesBeforeTheEndOfTheHandshakeAreRefused) {
  const UcxHead frames[] = {
      {Kind::kMessage, 1, 3, 0}, {Kind::kBuffer, 1, UcxHead::kSeparateFrom, 0}, {Kind::kGoodbye, 1, 0, 0}};
  for (const UcxHead& frame : frames) {
    UcxOpening server = waiting_server();
    // The data of a frame are not read.
    EXPECT_TRUE(server.arrive(view(frame.encode()), nullptr, 3, false));
    const Reaction reaction = server.advance();
    EXPECT_EQ(reaction.failure.code(), absl::StatusCode::kInvalidArgument) << reaction.failure;
    EXPECT_THAT(refusal_in(reaction), HasSubstr("before the handshake"));
    EXPECT_FALSE(reaction.done);
  }
  // The connecting end has said nothing of its own proof yet.
  UcxOpening client = opening(false, kToken);
  client.start();
  EXPECT_TRUE(client.arrive(view(frames[0].encode()), nullptr, 3, false));
  EXPECT_FALSE(client.advance().failure.ok());
}

TEST(UcxOpening, FramesOfAProvedPeerMayOvertakeItsHello) {
  UcxOpening client = opening(false, kToken), server = opening(true, kToken);
  server.start();
  Reaction step = client.start();
  for (UcxOpening* end : {&server, &client, &server, &client}) step = receive(*end, *step.send);
  ASSERT_EQ(step.send->head.kind, Kind::kHello);
  const Reaction last = receive(server, *step.send);
  ASSERT_TRUE(last.done);
  const UcxHead frame{Kind::kMessage, 1, 3, 0};
  EXPECT_FALSE(client.arrive(view(frame.encode()), "abc", 3, false));
  EXPECT_TRUE(client.advance().failure.ok());
  EXPECT_TRUE(receive(client, *last.send).done);
}

TEST(UcxOpening, LargeMessagesAreRefusedWithoutReadingThem) {
  const std::size_t limit = UcxHead::kMaxHandshakeBytes;
  for (const std::size_t bytes : {limit + 1, std::size_t{1} << 40}) {
    UcxOpening server = waiting_server();
    const UcxHead head{Kind::kHandshake, 0, bytes, 0};
    EXPECT_TRUE(server.arrive(view(head.encode()), nullptr, bytes, false));
    const Reaction reaction = server.advance();
    EXPECT_EQ(reaction.failure.code(), absl::StatusCode::kInvalidArgument) << reaction.failure;
    EXPECT_THAT(refusal_in(reaction), HasSubstr("expected at most 1032"));
  }
  // The head and the size contradict each other.
  UcxOpening server = waiting_server();
  const UcxHead head{Kind::kHandshake, 0, 8, 0};
  EXPECT_TRUE(server.arrive(view(head.encode()), nullptr, 1'000'000, false));
  EXPECT_FALSE(server.advance().failure.ok());
}

TEST(UcxOpening, MessagesByRendezvousAreRefusedWithoutReadingThem) {
  UcxOpening server = waiting_server();
  const UcxHead head{Kind::kHandshake, 0, 8, 0};
  EXPECT_TRUE(server.arrive(view(head.encode()), nullptr, 8, true));
  EXPECT_THAT(refusal_in(server.advance()), HasSubstr("rendezvous"));
}

TEST(UcxOpening, TwoMessagesAtOnceAreRefused) {
  UcxOpening server = waiting_server(), client = opening(false, kToken);
  const Reaction hello = client.start();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(server.arrive(view(hello.send->head.encode()), hello.send->data.data(),
                              hello.send->data.size(), false));
  }
  EXPECT_THAT(refusal_in(server.advance()), HasSubstr("two messages"));
  EXPECT_FALSE(server.advance().send.has_value());
}

TEST(UcxOpening, MalformedHeadsAreRefused) {
  const auto good = UcxHead{Kind::kHello, 0, 0, 0}.encode();
  std::vector<std::string> bad = {"", "GET / HTTP/1.1", std::string(view(good)) + "x"};
  for (const std::size_t byte : {0u, 4u, 5u, 6u, 28u}) {
    bad.emplace_back(view(good));
    bad.back()[byte] = 77;
  }
  for (const std::string& head : bad) {
    UcxOpening server = waiting_server();
    EXPECT_TRUE(server.arrive(head, nullptr, 0, false));
    const Reaction reaction = server.advance();
    EXPECT_EQ(reaction.failure.code(), absl::StatusCode::kInvalidArgument) << head;
    EXPECT_THAT(std::string(reaction.failure.message()), HasSubstr("10.0.0.1:4"));
  }
}

TEST(UcxOpening, RecordedMessagesAreWorthNothing) {
  UcxOpening client = opening(false, kToken), first = opening(true, kToken);
  const std::vector<Reaction> recorded = talk(client, first);
  ASSERT_EQ(recorded.size(), 7u);
  UcxOpening server = waiting_server();
  // The server answers the recorded hello with another nonce, for which the recorded proof is wrong.
  ASSERT_TRUE(receive(server, *recorded[0].send).failure.ok());
  const Reaction reaction = receive(server, *recorded[2].send);
  EXPECT_EQ(reaction.failure.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(refusal_in(reaction), HasSubstr("different tokens"));
  EXPECT_FALSE(reaction.done);
}

TEST(UcxOpening, AHelloDoesNotReplaceTheProof) {
  UcxOpening server = waiting_server(), client = opening(false, kToken);
  ASSERT_TRUE(receive(server, *client.start().send).failure.ok());
  const Reaction reaction = receive(server, {Kind::kHello, 0, 0, 0}, "");
  EXPECT_EQ(reaction.failure.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_FALSE(reaction.done);
}

TEST(UcxOpening, NothingFollowsAFailure) {
  UcxOpening server = waiting_server(), client = opening(false, kToken);
  const Reaction hello = client.start();
  ASSERT_FALSE(receive(server, {Kind::kHello, 0, 0, 0}, "").failure.ok());
  const Reaction after = receive(server, *hello.send);
  EXPECT_FALSE(after.send.has_value());
  EXPECT_FALSE(after.done);
}

TEST(UcxOpening, TheOwnerMayRefuse) {
  UcxOpening client = opening(false, nullptr), server = opening(true, nullptr);
  server.start();
  client.start();
  const Reaction refused = server.refuse("too many connections");
  EXPECT_EQ(refused.failure.code(), absl::StatusCode::kUnauthenticated);
  const Reaction reaction = receive(client, *refused.send);
  EXPECT_EQ(reaction.failure.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(reaction.failure.message()),
              HasSubstr("10.0.0.2:5 failed: it refused the connection: too many connections"));
}

}  // namespace
}  // namespace gradwire::transport
