#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire::security {

// A record of the token handshake, which precedes the frames of a connection. Integers are little-endian.
//
//   offset  bytes  content
//   0       4      magic: the characters "GWa1"
//   4       1      kind, see Kind
//   5       1      zero
//   6       2      length of the body, at most kMaxBody, for a refusal kMaxRefusal
//   8       length body
//
// The bodies are the messages of proto/handshake.proto, except a refusal's, which is a sentence in ASCII for
// a person. A refusal may come from either end in place of its next record, also from one that has no token
// and therefore has no handshake. Its sender closes the connection, and it proves nothing.
struct Record {
  enum class Kind : uint8_t { kHello = 1, kChallenge = 2, kProof = 3, kWelcome = 4, kRefusal = 5 };

  static constexpr std::size_t kHeaderBytes = 8;
  static constexpr std::size_t kMaxBody = 1024;
  static constexpr std::size_t kMaxRefusal = 512;

  Kind kind = Kind::kHello;
  std::string body;

  // A refusal with this sentence, which is cut after kMaxRefusal bytes. Other characters than printable ASCII
  // become question marks.
  static Record refusal(absl::string_view sentence);
  // The sentence of a refusal, which another process has written: printable ASCII, with question marks for
  // what was different.
  std::string sentence() const;

  // REQUIRES: the body is within the bounds.
  std::string encode() const;
};

// Finds the records in a stream of bytes that arrive in pieces. It needs memory for one record. Not
// thread-safe.
class RecordParser {
 public:
  // The number of bytes that surely belong to the present record and have not arrived: first the rest of its
  // header, then the rest of its body. 0 if the record is complete. A reader of a socket reads at most this
  // number, so that it does not take bytes behind the handshake.
  std::size_t wanted() const;
  // Adds bytes up to the end of the record, and returns how many it has taken. InvalidArgument, with the
  // reason, as soon as the bytes cannot be the beginning of a record. No more bytes may be added after an
  // error.
  absl::StatusOr<std::size_t> add(absl::string_view bytes);
  bool complete() const { return wanted() == 0; }
  // Returns the record and begins the next one. REQUIRES: complete().
  Record take();

 private:
  absl::Status check_header() const;
  std::size_t body_bytes() const;

  std::string bytes_;
};

}  // namespace gradwire::security
