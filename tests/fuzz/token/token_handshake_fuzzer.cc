// One end of the token handshake (proto/handshake.proto) with a hostile peer. The first byte of the input
// chooses:
//   bit 0  the end is the server
//   bit 1  the peer knows the token
//   bit 2  the end checks addresses
// The rest is what the peer sends: without the token a stream of bytes, which must never lead to the end of
// the handshake; with the token the terms of its message (a serialised HandshakeEnd), to which this file adds
// the proofs.

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "gradwire/proto/handshake.pb.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/token/record.h"
#include "gradwire/security/token/token_handshake.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace {

using gradwire::fuzzing::require;
using gradwire::security::Record;
using gradwire::security::RecordParser;
using gradwire::security::Secret;
using gradwire::security::TokenHandshake;
namespace proto = gradwire::proto;

const char* const kToken = "the token of the fuzzer, 32 bytes.";
const char* const kOwnAddress = "10.0.0.1:80";
const char* const kPeerAddress = "10.0.0.2:5000";
const std::string kOwnNonce(32, 'N');

struct Setting {
  bool server = false;
  bool knows_token = false;
  bool checks_addresses = false;
};

std::string hmac(const std::string& key, const std::string& message) {
  unsigned char bytes[32];
  ::HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
         reinterpret_cast<const unsigned char*>(message.data()), message.size(), bytes, nullptr);
  return {reinterpret_cast<const char*>(bytes), sizeof(bytes)};
}

// The end under test, with the bytes that it sends.
class End {
 public:
  explicit End(const Setting& setting)
      : handshake_(gradwire::security::handshake_key(Secret(kToken)),
                   {.role = setting.server ? TokenHandshake::Role::kServer : TokenHandshake::Role::kClient,
                    .purpose = "rpc",
                    .name = "end",
                    .own_address = kOwnAddress,
                    .peer_address = kPeerAddress,
                    .check_addresses = setting.checks_addresses,
                    .nonce = kOwnNonce,
                    .peer = "PEER"}) {
    use(handshake_.start());
    require(failure.ok(), "the end does not start");
  }

  void receive(absl::string_view bytes) {
    while (!bytes.empty() && !done && failure.ok()) {
      const std::size_t wanted = parser_.wanted();
      const absl::StatusOr<std::size_t> taken = parser_.add(bytes);
      if (!taken.ok()) {
        require(absl::IsInvalidArgument(taken.status()),
                "an error of the parser that is not InvalidArgument");
        failure = taken.status();
        return;
      }
      require(*taken >= std::min(wanted, bytes.size()), "the parser leaves bytes that it wants");
      bytes.remove_prefix(*taken);
      if (!parser_.complete()) continue;
      use(handshake_.receive(parser_.take()));
      require(failure.ok() || absl::IsUnauthenticated(failure), "an error that is not Unauthenticated");
      require(handshake_.peer_name().size() <= 255, "a name that is too long");
    }
  }
  std::string take_sent() { return std::exchange(sent_, ""); }

  bool done = false;
  absl::Status failure;

 private:
  void use(const TokenHandshake::Reaction& reaction) {
    if (reaction.send) {
      require(reaction.send->body.size() <= 1024, "a record that is too long");
      sent_ += reaction.send->encode();
    }
    done = reaction.done;
    failure = reaction.failure;
    for (const char c : failure.message()) require(c >= 0x20 && c <= 0x7e, "a message with other characters");
    require(!done || failure.ok(), "done and failed");
  }

  TokenHandshake handshake_;
  RecordParser parser_;
  std::string sent_;
};

// However the bytes are cut into pieces, a peer without the token gets the same answers and never to the end.
void play_stranger(const Setting& setting, const std::string& bytes) {
  End at_once(setting), in_pieces(setting);
  at_once.receive(bytes);
  const std::size_t piece = 1 + bytes.size() % 7;
  for (std::size_t at = 0; at < bytes.size(); at += piece)
    in_pieces.receive(absl::string_view(bytes).substr(at, piece));
  require(!at_once.done && !in_pieces.done, "a peer without the token is accepted");
  require(at_once.failure.code() == in_pieces.failure.code(), "the failure depends on the pieces");
  // The parser shows the bytes at a bad beginning that it has, so only other messages are compared.
  require(absl::IsInvalidArgument(at_once.failure) || at_once.failure == in_pieces.failure,
          "the message depends on the pieces");
  require(at_once.take_sent() == in_pieces.take_sent(), "the answer depends on the pieces");
}

bool is_text(const std::string& text, std::size_t most) {
  return text.size() <= most &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c <= 0x7e; });
}

// Whether the end must accept these terms, by proto/handshake.proto.
bool is_valid(const Setting& setting, const std::string& terms) {
  proto::HandshakeEnd end;
  if (!end.ParseFromString(terms)) return false;
  if (end.version() != 1 || end.purpose() != "rpc" || !is_text(end.name(), 255)) return false;
  if (end.nonce().size() != 32 || end.nonce() == kOwnNonce) return false;
  if (!is_text(end.own_address(), 64) || !is_text(end.peer_address(), 64)) return false;
  if (!setting.checks_addresses && !end.check_addresses()) return true;
  return end.own_address() == kPeerAddress && end.peer_address() == kOwnAddress;
}

// A peer that knows the token and sends these terms.
void play_member(const Setting& setting, std::string terms) {
  terms.resize(std::min<std::size_t>(terms.size(), 900));
  const std::string key = hmac(kToken, "gradwire handshake 1");
  End end(setting);
  const bool valid = is_valid(setting, terms);
  if (setting.server) {
    const std::string hello = Record{Record::Kind::kHello, terms}.encode();
    end.receive(hello);
    require(end.failure.ok() == valid, "a hello is accepted or refused wrongly");
    if (!valid) return;
    const std::string answer = end.take_sent();
    proto::HandshakeChallenge challenge;
    require(challenge.ParseFromString(answer.substr(8)), "a challenge that cannot be parsed");
    require(challenge.proof() == hmac(key, "gradwire server" + hello + challenge.terms()), "a wrong proof");
    proto::HandshakeProof proof;
    proof.set_proof(hmac(key, "gradwire client" + hello + answer));
    end.receive(Record{Record::Kind::kProof, proof.SerializeAsString()}.encode());
  } else {
    const std::string hello = end.take_sent();
    proto::HandshakeChallenge challenge;
    challenge.set_terms(terms);
    challenge.set_proof(hmac(key, "gradwire server" + hello + terms));
    const std::string sent = Record{Record::Kind::kChallenge, challenge.SerializeAsString()}.encode();
    end.receive(sent);
    require(end.failure.ok() == valid, "a challenge is accepted or refused wrongly");
    if (!valid) return;
    proto::HandshakeProof proof;
    require(proof.ParseFromString(end.take_sent().substr(8)), "a proof that cannot be parsed");
    require(proof.proof() == hmac(key, "gradwire client" + hello + sent), "a wrong proof");
    end.receive(Record{Record::Kind::kWelcome, ""}.encode());
  }
  require(end.done, "a peer with the token and valid terms is refused");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  gradwire::fuzzing::Input input(data, size);
  const uint64_t choice = input.number(1);
  const Setting setting{
      .server = (choice & 1) != 0, .knows_token = (choice & 2) != 0, .checks_addresses = (choice & 4) != 0};
  if (setting.knows_token) {
    play_member(setting, input.rest());
  } else {
    play_stranger(setting, input.rest());
  }
  return 0;
}
