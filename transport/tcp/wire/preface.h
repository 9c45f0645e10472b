#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire::transport {

// The first bytes that the connecting end sends. Integers are little-endian.
//
//   offset  bytes  content
//   0       4      magic: the characters "GWt1"
//   4       1      version: 2
//   5       1      kind in the low four bits: 0 a connection, 1 a stripe of a connection. In the high four
//                  bits the proof that both ends give: 0 none, 1 the job's token, 2 certificates (TLS); 0 for
//                  a stripe
//   6       1      number of the stripe, from 1 on; 0 for a connection
//   7       1      number of stripes of the connection, at most kMaxStripes; 0 for a connection
//   8       16     token
//
// The connecting end chooses the token at random. A stripe uses it to identify its connection, and to prove
// that it comes from a process that has seen the connection's preface. After the preface of a connection
// follow
// - without proof: frames (frame.h);
// - with a token: the records of its handshake (security/token/record.h), then frames;
// - with certificates: the handshake of TLS, then frames in TLS.
// After the preface of a stripe follow
// - without proof: shares;
// - with a token: the records of a handshake, then shares. The accepting end is its client, so that the
//   opener has finished it when the acceptor says that the stripes are ready (stripe_control.h). Its purpose
//   is that of the connection with "/stripe" behind it.
// A connection with certificates has no stripes.
//
// The accepting end sends no preface. If it demands another proof, or does not accept the connection for
// another reason, it answers with a record that is a refusal, and closes.
struct Preface {
  static constexpr std::size_t kBytes = 24;
  using Token = std::array<uint64_t, 2>;

  enum class Kind { kConnection, kStripe };
  enum class Proof : uint8_t { kNone, kToken, kCertificate };

  Kind kind = Kind::kConnection;
  Proof proof = Proof::kNone;
  int stripe = 0;
  int stripes = 0;
  Token token = {};

  std::string encode() const;
  // Returns InvalidArgument with the reason for an invalid preface. REQUIRES: bytes.size() == kBytes.
  static absl::StatusOr<Preface> parse(absl::string_view bytes);
  // Whether the bytes are a preface of some version.
  static bool has_magic(absl::string_view bytes);
};

// Two random numbers from the operating system.
Preface::Token random_token();

}  // namespace gradwire::transport
