#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire::transport {

// What whoever connects sends first. Integers are little-endian.
//
//   offset  bytes  what
//   0       4      magic: the characters "GWt1"
//   4       1      version: 1
//   5       1      kind: 0 a connection, 1 a stripe of one
//   6       1      of a stripe: its number, from 1 on; else 0
//   7       1      of a stripe: how many there will be, at most kMaxStripes; else 0
//   8       16     token
//
// Whoever opens a connection draws its token at random; with it a stripe names the connection that it belongs
// to, and proves that it comes from where that came from. Frames (frame.h) follow on a connection, shares on
// a stripe. The end that was connected to sends no preface.
struct Preface {
  static constexpr std::size_t kBytes = 24;
  using Token = std::array<uint64_t, 2>;

  enum class Kind { kConnection, kStripe };

  Kind kind = Kind::kConnection;
  int stripe = 0;
  int stripes = 0;
  Token token = {};

  std::string encode() const;
  // InvalidArgument that says what is wrong. REQUIRES: kBytes bytes.
  static absl::StatusOr<Preface> parse(absl::string_view bytes);
};

// Two numbers drawn at random by the operating system.
Preface::Token random_token();

}  // namespace gradwire::transport
