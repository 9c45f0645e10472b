#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/proto/handshake.pb.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/token/record.h"
#include "gradwire/security/token/token_handshake.h"
#include "gtest/gtest.h"

// For tests: the two ends of a token handshake, without sockets, and an attacker between them.
namespace gradwire::security {

inline const std::string kToken = "0123456789abcdef0123456789abcdef";

inline Secret key(const std::string& token = kToken) { return handshake_key(Secret(token)); }

inline TokenHandshake::Options client_options() {
  return {.role = TokenHandshake::Role::kClient,
          .purpose = "rpc",
          .name = "a",
          .own_address = "10.0.0.1:5000",
          .peer_address = "10.0.0.2:80",
          .nonce = std::string(32, 'C'),
          .peer = "SERVER"};
}

inline TokenHandshake::Options server_options() {
  return {.role = TokenHandshake::Role::kServer,
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
  End(Secret key, TokenHandshake::Options options) : handshake_(std::move(key), std::move(options)) {}

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
inline std::vector<std::string> shake(End& client, End& server, const Attack& attack = nullptr) {
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

inline std::vector<std::string> honest_records() {
  End client(key(), client_options());
  End server(key(), server_options());
  return shake(client, server);
}

// Changes the end that a record carries, as an attacker without the token can.
inline void change_hello(std::string& bytes, const std::function<void(proto::HandshakeEnd&)>& change) {
  proto::HandshakeEnd end;
  ASSERT_TRUE(end.ParseFromString(bytes.substr(Record::kHeaderBytes)));
  change(end);
  bytes = Record{Record::Kind::kHello, end.SerializeAsString()}.encode();
}

inline void change_challenge(std::string& bytes, const std::function<void(proto::HandshakeEnd&)>& change) {
  proto::HandshakeChallenge challenge;
  proto::HandshakeEnd end;
  ASSERT_TRUE(challenge.ParseFromString(bytes.substr(Record::kHeaderBytes)));
  ASSERT_TRUE(end.ParseFromString(challenge.terms()));
  change(end);
  challenge.set_terms(end.SerializeAsString());
  bytes = Record{Record::Kind::kChallenge, challenge.SerializeAsString()}.encode();
}

}  // namespace gradwire::security
