#include "gradwire/security/token/token_handshake.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::security {

Hmac hmac_sha256(const Secret& key, absl::string_view message) {
  Hmac hmac;
  unsigned int size = 0;
  const unsigned char* const done =
      ::HMAC(EVP_sha256(), key.reveal().data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(message.data()), message.size(),
             reinterpret_cast<unsigned char*>(hmac.data()), &size);
  // Only an OpenSSL without SHA-256, or no memory, can be the cause. A proof made of other bytes would be
  // worse than the end of the process.
  if (done == nullptr || size != kHmacBytes) std::terminate();
  return hmac;
}

namespace {

using Kind = Record::Kind;
using Reaction = TokenHandshake::Reaction;

constexpr std::size_t kMaxPurpose = 32;
constexpr std::size_t kMaxName = 255;
constexpr std::size_t kMaxAddress = 64;

constexpr absl::string_view kKeyLabel = "gradwire handshake 1";
constexpr absl::string_view kServerLabel = "gradwire server";
constexpr absl::string_view kClientLabel = "gradwire client";

constexpr absl::string_view kOtherToken =
    "the two processes have different tokens; start both with the same token, for example with the same file "
    "in GRADWIRE_TOKEN_FILE or SecurityOptions::token_file";

absl::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::kHello:
      return "hello";
    case Kind::kChallenge:
      return "challenge";
    case Kind::kProof:
      return "proof";
    case Kind::kWelcome:
      return "welcome";
    case Kind::kRefusal:
      return "refusal";
  }
  return "unknown record";
}

// The kind of process that listens at a port of this purpose.
std::string user_of(absl::string_view purpose) {
  if (purpose == "rpc") return "an rpc worker";
  if (purpose == "store") return "a store";
  if (purpose == "group") return "a process group";
  return absl::StrCat("\"", purpose, "\"");
}

bool is_printable(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c <= 0x7e; });
}

// Returns what is wrong with a text, or "".
std::string check_text(absl::string_view what, absl::string_view text, std::size_t least, std::size_t most) {
  if (text.size() < least || text.size() > most)
    return absl::StrCat(what, " has ", text.size(), " bytes, expected ", least, " to ", most);
  if (!is_printable(text)) return absl::StrCat(what, " has bytes that are not printable ASCII");
  return "";
}

// Returns what is outside the bounds of the specification, or "".
std::string check_bounds(const proto::HandshakeEnd& end) {
  std::string wrong = check_text("the purpose", end.purpose(), 1, kMaxPurpose);
  if (wrong.empty()) wrong = check_text("the name", end.name(), 0, kMaxName);
  if (wrong.empty() && end.nonce().size() != TokenHandshake::kNonceBytes) {
    wrong =
        absl::StrCat("the nonce has ", end.nonce().size(), " bytes, expected ", TokenHandshake::kNonceBytes);
  }
  if (wrong.empty()) wrong = check_text("the own address", end.own_address(), 0, kMaxAddress);
  if (wrong.empty()) wrong = check_text("the peer address", end.peer_address(), 0, kMaxAddress);
  return wrong;
}

absl::string_view shown(absl::string_view address) { return address.empty() ? "(none)" : address; }

}  // namespace

Secret handshake_key(const Secret& token) { return Secret(view(hmac_sha256(token, kKeyLabel))); }

TokenHandshake::TokenHandshake(Secret key, Options options)
    : key_(std::move(key)), options_(std::move(options)) {}

Reaction TokenHandshake::start() {
  if (const std::string wrong = check_bounds(own_end()); !wrong.empty()) {
    waiting_ = Waiting::kNothing;
    return {.failure = absl::InvalidArgumentError(absl::StrCat("cannot begin the handshake with ",
                                                               options_.peer, ": of this process, ", wrong))};
  }
  if (options_.role == Role::kServer) {
    waiting_ = Waiting::kHello;
    return {};
  }
  waiting_ = Waiting::kChallenge;
  Record hello{Kind::kHello, own_end().SerializeAsString()};
  transcript_ = hello.encode();
  return {.send = std::move(hello)};
}

Reaction TokenHandshake::receive(const Record& record) {
  const Waiting waiting = std::exchange(waiting_, Waiting::kNothing);
  if (waiting == Waiting::kStart || waiting == Waiting::kNothing)
    return {.failure = absl::FailedPreconditionError("a record outside the handshake")};
  if (record.kind == Kind::kRefusal) {
    return fail(absl::StrCat("it refused the connection: ", record.sentence()));
  }
  const Kind expected = waiting == Waiting::kHello       ? Kind::kHello
                        : waiting == Waiting::kChallenge ? Kind::kChallenge
                        : waiting == Waiting::kProof     ? Kind::kProof
                                                         : Kind::kWelcome;
  if (record.kind != expected) {
    return refuse(absl::StrCat("malformed handshake: got the record \"", name_of(record.kind),
                               "\", expected \"", name_of(expected), "\""));
  }
  switch (expected) {
    case Kind::kHello:
      return on_hello(record);
    case Kind::kChallenge:
      return on_challenge(record);
    case Kind::kProof:
      return on_proof(record);
    default:
      return {.done = true};
  }
}

Reaction TokenHandshake::receive_garbage(absl::string_view reason) {
  Reaction reaction =
      fail(absl::StrCat(reason, "; check that the address belongs to a process of Gradwire with a token"));
  reaction.send = Record::refusal(reason);
  return reaction;
}

Reaction TokenHandshake::on_hello(const Record& record) {
  proto::HandshakeEnd client;
  if (!client.ParseFromString(record.body)) return refuse("malformed handshake: the hello cannot be parsed");
  if (const std::string reason = check_peer(client); !reason.empty()) return refuse(reason);
  transcript_ = record.encode();
  proto::HandshakeChallenge challenge;
  challenge.set_terms(own_end().SerializeAsString());
  challenge.set_proof(proof(kServerLabel, challenge.terms()));
  Record answer{Kind::kChallenge, challenge.SerializeAsString()};
  transcript_ += answer.encode();
  waiting_ = Waiting::kProof;
  return {.send = std::move(answer)};
}

Reaction TokenHandshake::on_challenge(const Record& record) {
  proto::HandshakeChallenge challenge;
  proto::HandshakeEnd server;
  if (!challenge.ParseFromString(record.body) || !server.ParseFromString(challenge.terms()))
    return refuse("malformed handshake: the challenge cannot be parsed");
  // The proof would show these differences too, but not which one it is.
  if (const std::string reason = check_peer(server); !reason.empty()) return refuse(reason);
  if (!equal_in_constant_time(challenge.proof(), proof(kServerLabel, challenge.terms())))
    return refuse(kOtherToken);
  transcript_ += record.encode();
  proto::HandshakeProof answer;
  answer.set_proof(proof(kClientLabel, ""));
  waiting_ = Waiting::kWelcome;
  return {.send = Record{Kind::kProof, answer.SerializeAsString()}};
}

Reaction TokenHandshake::on_proof(const Record& record) {
  proto::HandshakeProof message;
  if (!message.ParseFromString(record.body)) return refuse("malformed handshake: the proof cannot be parsed");
  if (!equal_in_constant_time(message.proof(), proof(kClientLabel, ""))) return refuse(kOtherToken);
  return {.send = Record{Kind::kWelcome, proto::HandshakeWelcome().SerializeAsString()}, .done = true};
}

Reaction TokenHandshake::refuse(absl::string_view reason) {
  Reaction reaction = fail(reason);
  reaction.send = Record::refusal(reason);
  return reaction;
}

Reaction TokenHandshake::fail(absl::string_view reason) {
  waiting_ = Waiting::kNothing;
  const std::string name = peer_name_.empty() ? "" : absl::StrCat("\"", peer_name_, "\" at ");
  return {.failure = absl::UnauthenticatedError(
              absl::StrCat("the handshake with ", name, options_.peer, " failed: ", reason))};
}

proto::HandshakeEnd TokenHandshake::own_end() const {
  proto::HandshakeEnd end;
  end.set_version(kVersion);
  end.set_purpose(options_.purpose);
  end.set_name(options_.name);
  end.set_nonce(options_.nonce);
  end.set_own_address(options_.own_address);
  end.set_peer_address(options_.peer_address);
  end.set_check_addresses(options_.check_addresses);
  return end;
}

std::string TokenHandshake::check_peer(const proto::HandshakeEnd& peer) {
  const bool client = options_.role == Role::kClient;
  // 1. Another version may define the other fields in another way.
  if (peer.version() != kVersion) {
    const bool peer_is_older = peer.version() < kVersion;
    return absl::StrCat("the connecting process speaks version ", client ? kVersion : peer.version(),
                        " of the handshake, the accepting process version ",
                        client ? peer.version() : kVersion, "; update Gradwire in the ",
                        client == peer_is_older ? "accepting" : "connecting", " process");
  }
  // 2. Nothing of the message is shown before its bounds are known.
  if (const std::string wrong = check_bounds(peer); !wrong.empty())
    return absl::StrCat("malformed handshake: ", wrong);
  peer_name_ = peer.name();
  // 3. The connection must be meant for this port.
  if (peer.purpose() != options_.purpose) {
    const std::string& port = client ? peer.purpose() : options_.purpose;
    const std::string wanted = user_of(client ? options_.purpose : peer.purpose());
    return absl::StrCat("this is the port of ", user_of(port), ", not of ", wanted,
                        "; give the connecting process the address of ", wanted);
  }
  // 4. An attacker without the token could let this process answer its own questions.
  if (peer.nonce() == options_.nonce) {
    return absl::StrCat("the ", client ? "connecting" : "accepting",
                        " process received its own nonce: something sends its messages back to it; give the "
                        "connecting process the address of another process");
  }
  return check_addresses(peer);
}

std::string TokenHandshake::check_addresses(const proto::HandshakeEnd& peer) const {
  if (!options_.check_addresses && !peer.check_addresses()) return "";
  if (peer.own_address() == options_.peer_address && peer.peer_address() == options_.own_address) return "";
  const bool client = options_.role == Role::kClient;
  const std::string own = absl::StrCat("from ", shown(client ? options_.own_address : options_.peer_address),
                                       " to ", shown(client ? options_.peer_address : options_.own_address));
  const std::string other = absl::StrCat("from ", shown(client ? peer.peer_address() : peer.own_address()),
                                         " to ", shown(client ? peer.own_address() : peer.peer_address()));
  return absl::StrCat("the connecting process sees a connection ", client ? own : other,
                      ", the accepting process one ", client ? other : own,
                      ": something between them relays it; if it translates addresses (NAT), set "
                      "SecurityOptions::check_addresses = false in both processes");
}

std::string TokenHandshake::proof(absl::string_view label, absl::string_view message) const {
  return std::string(view(hmac_sha256(key_, absl::StrCat(label, transcript_, message))));
}

}  // namespace gradwire::security
