#include "gradwire/security/token/token_message_handshake.h"

#include <utility>

#include "absl/status/statusor.h"
#include "gradwire/security/token/record.h"

namespace gradwire::security {

MessageHandshake::Reaction TokenMessageHandshake::receive(absl::string_view message) {
  RecordParser parser;
  const absl::StatusOr<std::size_t> taken = parser.add(message);
  if (!taken.ok()) return take(handshake_.receive_garbage(taken.status().message()));
  if (!parser.complete() || *taken != message.size()) {
    return take(
        handshake_.receive_garbage("malformed record of the handshake: its message has another length"));
  }
  return take(handshake_.receive(parser.take()));
}

MessageHandshake::Reaction TokenMessageHandshake::take(TokenHandshake::Reaction reaction) {
  if (reaction.done) identity_.name = handshake_.peer_name();
  return {.send = reaction.send.has_value() ? reaction.send->encode() : "",
          .done = reaction.done,
          .failure = std::move(reaction.failure)};
}

}  // namespace gradwire::security
