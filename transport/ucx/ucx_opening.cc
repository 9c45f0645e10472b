#include "gradwire/transport/ucx/ucx_opening.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/security/token/record.h"
#include "gradwire/transport/tcp/secure/rules.h"
#include "gradwire/transport/tcp/wire/preface.h"

namespace gradwire::transport {
namespace {

using security::Record;
using Kind = UcxHead::Kind;
using Outgoing = UcxOpening::Outgoing;
using Reaction = UcxOpening::Reaction;

Outgoing handshake_message(std::string record) {
  return {UcxHead{Kind::kHandshake, 0, record.size(), 0}, std::move(record)};
}

// The sentence of a refusal, if the message is one.
std::optional<std::string> refusal_in(absl::string_view message) {
  security::RecordParser parser;
  const absl::StatusOr<std::size_t> taken = parser.add(message);
  if (!taken.ok() || !parser.complete()) return std::nullopt;
  const Record record = parser.take();
  if (record.kind != Record::Kind::kRefusal) return std::nullopt;
  return record.sentence();
}

}  // namespace

Reaction UcxOpening::start() {
  if (options_.handshake == nullptr) {
    waiting_ = Waiting::kHello;
    return options_.accepted ? Reaction{} : say_hello();
  }
  waiting_ = Waiting::kHandshake;
  return react(options_.handshake->start());
}

bool UcxOpening::arrive(absl::string_view head_bytes, const void* data, std::size_t data_bytes,
                        bool rendezvous) {
  Arrived arrived;
  const absl::StatusOr<UcxHead> head = UcxHead::parse(head_bytes);
  if (head.ok()) {
    arrived.head = *head;
    const bool is_frame = head->kind != Kind::kHello && head->kind != Kind::kHandshake;
    if (is_frame && waiting_ == Waiting::kHello && !options_.accepted) return false;
    if (is_frame) {
      arrived.malformed =
          absl::InvalidArgumentError("it sent a message before the handshake and the hello have ended");
    } else if (arrived_.has_value()) {
      arrived.malformed = absl::InvalidArgumentError("it sent two messages of the handshake at once");
    } else if (rendezvous) {
      arrived.malformed = absl::InvalidArgumentError("it sent a message of the handshake by rendezvous");
    } else {
      // The limits are those of frames.
      arrived.malformed = head->check_data(data_bytes, Limits());
    }
  } else {
    arrived.malformed = head.status();
  }
  if (arrived.malformed.ok()) arrived.data.assign(static_cast<const char*>(data), data_bytes);
  arrived_ = std::move(arrived);
  return true;
}

Reaction UcxOpening::advance() {
  if (!arrived_.has_value() || waiting_ == Waiting::kNothing) return {};
  const Arrived arrived = *std::exchange(arrived_, std::nullopt);
  if (!arrived.malformed.ok()) {
    Reaction reaction = refuse(arrived.malformed.message());
    reaction.failure = with_context(arrived.malformed, absl::StrCat("connection with ", options_.peer));
    return reaction;
  }
  return arrived.head.kind == Kind::kHello ? receive_hello() : receive_record(arrived.data);
}

Reaction UcxOpening::receive_record(absl::string_view data) {
  if (waiting_ == Waiting::kHandshake) return react(options_.handshake->receive(data));
  // A peer that demands a proof, or has no room for the connection, answers the hello with a refusal.
  if (const std::optional<std::string> sentence = refusal_in(data); sentence.has_value()) {
    return fail(absl::StrCat("it refused the connection: ", *sentence));
  }
  if (options_.handshake == nullptr) return refuse(other_proof(true));
  return refuse("malformed handshake: a record has arrived after its end");
}

Reaction UcxOpening::receive_hello() {
  if (waiting_ == Waiting::kHandshake) return refuse(other_proof(false));
  Reaction reaction = options_.accepted ? say_hello() : Reaction{};
  reaction.done = true;
  waiting_ = Waiting::kNothing;
  return reaction;
}

Reaction UcxOpening::react(security::MessageHandshake::Reaction step) {
  Reaction reaction;
  if (!step.send.empty()) reaction.send = handshake_message(std::move(step.send));
  reaction.failure = std::move(step.failure);
  if (!reaction.failure.ok()) {
    waiting_ = Waiting::kNothing;
  } else if (step.done) {
    waiting_ = Waiting::kHello;
    // The last message of the handshake comes from the accepting end. So the connecting end goes on.
    if (!options_.accepted) return say_hello();
  }
  return reaction;
}

Reaction UcxOpening::say_hello() { return {.send = Outgoing{UcxHead{Kind::kHello, 0, 0, 0}, ""}}; }

Reaction UcxOpening::refuse(absl::string_view sentence) {
  Reaction reaction = fail(sentence);
  reaction.send = handshake_message(Record::refusal(sentence).encode());
  return reaction;
}

Reaction UcxOpening::fail(absl::string_view reason) {
  waiting_ = Waiting::kNothing;
  return {.failure = absl::UnauthenticatedError(
              absl::StrCat("the handshake with ", options_.peer, " failed: ", reason))};
}

std::string UcxOpening::other_proof(bool peer_has_token) const {
  const bool connecting_has_token = options_.accepted == peer_has_token;
  return other_proof_sentence(connecting_has_token ? Preface::Proof::kToken : Preface::Proof::kNone,
                              connecting_has_token ? Preface::Proof::kNone : Preface::Proof::kToken);
}

security::PeerIdentity UcxOpening::peer() const {
  return options_.handshake == nullptr ? security::PeerIdentity() : options_.handshake->peer();
}

}  // namespace gradwire::transport
