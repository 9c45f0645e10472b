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
//   4       1      version: 1
//   5       1      kind: 0 a connection, 1 a stripe of a connection
//   6       1      number of the stripe, from 1 on; 0 for a connection
//   7       1      number of stripes of the connection, at most kMaxStripes; 0 for a connection
//   8       16     token
//
// The connecting end chooses the token at random. A stripe uses it to identify its connection, and to prove
// that it comes from the process that opened the connection. After the preface, frames (frame.h) follow on a
// connection and shares on a stripe. The accepting end sends no preface.
struct Preface {
  static constexpr std::size_t kBytes = 24;
  using Token = std::array<uint64_t, 2>;

  enum class Kind { kConnection, kStripe };

  Kind kind = Kind::kConnection;
  int stripe = 0;
  int stripes = 0;
  Token token = {};

  std::string encode() const;
  // Returns InvalidArgument with the reason for an invalid preface. REQUIRES: bytes.size() == kBytes.
  static absl::StatusOr<Preface> parse(absl::string_view bytes);
};

// Two random numbers from the operating system.
Preface::Token random_token();

}  // namespace gradwire::transport
