#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/proto/handshake.pb.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/token/record.h"

namespace gradwire::security {

// HMAC-SHA256 (RFC 2104).
inline constexpr std::size_t kHmacBytes = 32;
using Hmac = std::array<char, kHmacBytes>;

// REQUIRES: the key is not empty.
Hmac hmac_sha256(const Secret& key, absl::string_view message);

inline absl::string_view view(const Hmac& hmac) { return {hmac.data(), hmac.size()}; }

// The key of the handshakes of a job with this token. REQUIRES: the token is not empty.
Secret handshake_key(const Secret& token);

// One end of the token handshake, as proto/handshake.proto specifies it. A state machine without sockets,
// clocks or random numbers: records go in, records to send come out. Not thread-safe.
//
//   client:  start() sends hello  ->  challenge arrives: sends proof  ->  welcome arrives: done
//   server:  start()              ->  hello arrives: sends challenge  ->  proof arrives: sends welcome, done
class TokenHandshake {
 public:
  static constexpr uint32_t kVersion = 1;
  static constexpr std::size_t kNonceBytes = 32;

  enum class Role : uint8_t {
    // The process that has connected.
    kClient,
    // The process that has accepted the connection.
    kServer,
  };

  struct Options {
    Role role = Role::kClient;
    // The use of the connection, as "rpc" or "store"; 1 to 32 characters.
    std::string purpose;
    // The name of this process; at most 255 characters, may be empty.
    std::string name;
    // The addresses of the connection as this process sees them; at most 64 characters each.
    std::string own_address;
    std::string peer_address;
    bool check_addresses = true;
    // kNonceBytes random bytes, for this handshake only.
    std::string nonce;
    // The peer in messages, for example its address.
    std::string peer;
  };

  // The next actions of the owner, in this order.
  struct Reaction {
    // Send this record.
    std::optional<Record> send;
    // The peer has proved that it knows the token; the handshake is over.
    bool done = false;
    // If not OK: the handshake has failed; close the connection. Unauthenticated, with a sentence for the
    // user that names the peer and the remedy. InvalidArgument if an option of this process is outside its
    // bounds.
    absl::Status failure;
  };

  // `key`: handshake_key().
  TokenHandshake(Secret key, Options options);

  // Called once, at first.
  Reaction start();
  // Handles the next record of the peer. After the end it returns FailedPrecondition.
  Reaction receive(const Record& record);
  // Handles bytes that are not a record, for this reason: the handshake fails.
  Reaction receive_garbage(absl::string_view reason);

  // The name that the peer has said; printable ASCII. Proved to come from a process with the token after
  // `done`.
  const std::string& peer_name() const { return peer_name_; }

 private:
  enum class Waiting : uint8_t { kStart, kHello, kChallenge, kProof, kWelcome, kNothing };

  Reaction on_hello(const Record& record);
  Reaction on_challenge(const Record& record);
  Reaction on_proof(const Record& record);

  // Sends the reason to the peer and fails. The reason is written for both ends: it names them "the
  // connecting process" and "the accepting process".
  Reaction refuse(absl::string_view reason);
  // The failure of this process, with the name of the peer before the reason.
  Reaction fail(absl::string_view reason);

  // The message of this end.
  proto::HandshakeEnd own_end() const;
  // Checks the message of the other end, and keeps its name. Returns the reason to refuse it, or "".
  std::string check_peer(const proto::HandshakeEnd& peer);
  std::string check_addresses(const proto::HandshakeEnd& peer) const;
  // The key's HMAC over label and message.
  std::string proof(absl::string_view label, absl::string_view message) const;

  const Secret key_;
  const Options options_;

  Waiting waiting_ = Waiting::kStart;
  std::string peer_name_;
  // The records so far, as they travelled.
  std::string transcript_;
};

}  // namespace gradwire::security
