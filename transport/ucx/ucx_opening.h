#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/security/message_handshake.h"
#include "gradwire/security/peer_identity.h"
#include "gradwire/transport/ucx/ucx_frame.h"

namespace gradwire::transport {

// One end of a connection over UCX until both ends have said hello. A state machine without UCX: active
// messages go in, active messages to send come out. Not thread-safe.
//
//   connecting end              accepting end
//   handshake: hello      -->
//                         <--   handshake: challenge
//   handshake: proof      -->
//                         <--   handshake: welcome
//   hello                 -->
//                         <--   hello, then frames
//   frames
//
// Without a token there are only the two hellos. Either end may send a refusal (security/token/record.h), as
// a message of the handshake, in place of its next message. So a peer whose credentials are of another kind
// learns of it.
//
// Each end waits for an answer before it sends more, so that at most one message is under way. Only the
// frames of the accepting end may overtake its hello.
class UcxOpening {
 public:
  struct Options {
    // Whether this end has accepted the connection.
    bool accepted = false;
    // nullptr: neither end proves anything.
    std::unique_ptr<security::MessageHandshake> handshake;
    // The peer in messages: its address.
    std::string peer;
  };
  struct Outgoing {
    UcxHead head;
    std::string data;
  };
  // The next actions of the owner, in this order.
  struct Reaction {
    std::optional<Outgoing> send;
    // Both ends have said hello: the peer is known, and frames may be sent and delivered.
    bool done = false;
    // If not OK: close the connection. Unauthenticated, with a sentence for the user that names the peer;
    // InvalidArgument if the peer does not speak this protocol. If there is a message to send, it says why:
    // give the peer time to read it.
    absl::Status failure;
  };

  explicit UcxOpening(Options options) : options_(std::move(options)) {}

  // Called once, at first.
  Reaction start();
  // Takes an active message that has arrived, for the next call of advance(). It copies at most
  // UcxHead::kMaxHandshakeBytes bytes, and `data` is not read if the message was sent by `rendezvous`.
  // Returns false for a frame that has overtaken the hello of a peer that has nothing more to prove: it must
  // be kept until the opening is done. REQUIRES: start() was called, and no reaction had `done` or a failure.
  bool arrive(absl::string_view head_bytes, const void* data, std::size_t data_bytes, bool rendezvous);
  // Handles the message that has arrived, if there is one.
  Reaction advance();
  // Refuses the connection for a reason of the owner.
  Reaction refuse(absl::string_view sentence);

  // The peer, as far as it has proved who it is; known after `done`.
  security::PeerIdentity peer() const;

 private:
  enum class Waiting : uint8_t { kHandshake, kHello, kNothing };
  struct Arrived {
    UcxHead head;
    std::string data;
    // Not OK: the message is not one that an opening accepts.
    absl::Status malformed;
  };

  Reaction receive_record(absl::string_view data);
  Reaction receive_hello();
  Reaction react(security::MessageHandshake::Reaction reaction);
  Reaction say_hello();
  Reaction fail(absl::string_view reason);
  // The sentence for a peer with credentials of another kind.
  std::string other_proof(bool peer_has_token) const;

  Options options_;
  Waiting waiting_ = Waiting::kNothing;
  std::optional<Arrived> arrived_;
};

}  // namespace gradwire::transport
