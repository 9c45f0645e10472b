#pragma once

#include <utility>

#include "absl/strings/string_view.h"
#include "gradwire/security/message_handshake.h"
#include "gradwire/security/peer_identity.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/token/token_handshake.h"

namespace gradwire::security {

// TokenHandshake over messages, each of which is one record. Not thread-safe.
class TokenMessageHandshake : public MessageHandshake {
 public:
  // `key`: handshake_key().
  TokenMessageHandshake(const Secret& key, TokenHandshake::Options options)
      : handshake_(key, std::move(options)) {
    identity_.proof = PeerIdentity::Proof::kToken;
  }

  Reaction start() override { return take(handshake_.start()); }
  Reaction receive(absl::string_view message) override;
  const PeerIdentity& peer() const override { return identity_; }

 private:
  Reaction take(TokenHandshake::Reaction reaction);

  TokenHandshake handshake_;
  PeerIdentity identity_;
};

}  // namespace gradwire::security
