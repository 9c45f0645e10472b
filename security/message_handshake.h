#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/security/peer_identity.h"

namespace gradwire::security {

// The beginning of a connection that carries messages and has no socket of its own, in which each end proves
// who it is. A state machine: messages go in, messages to send come out. Not thread-safe.
class MessageHandshake {
 public:
  // The next actions of the owner, in this order.
  struct Reaction {
    // Send this message; empty: none.
    std::string send;
    // The peer has proved who it is; the handshake is over.
    bool done = false;
    // If not OK: the handshake has failed; close the connection. Unauthenticated, with a sentence that names
    // the peer and the remedy; InvalidArgument for an option of this process that is outside its bounds.
    absl::Status failure;
  };

  virtual ~MessageHandshake() = default;

  // Called once, at first.
  virtual Reaction start() = 0;
  // Handles the next message of the peer.
  virtual Reaction receive(absl::string_view message) = 0;
  // After `done`.
  virtual const PeerIdentity& peer() const = 0;
};

// The end of a connection for which a MessageHandshake is made.
struct MessageChannel {
  // Whether this end has accepted the connection.
  bool accepted = false;
  // The addresses of this end and of the peer as this end sees them; at most 64 characters each. Empty: not
  // known, which must then be so at both ends.
  std::string own_address;
  std::string peer_address;
};

}  // namespace gradwire::security
