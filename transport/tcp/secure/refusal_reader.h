#pragma once

#include <cstddef>
#include <string>

#include "absl/types/span.h"
#include "gradwire/security/token/record.h"

namespace gradwire::transport {

// Recognises a refusal (security/token/record.h) at the beginning of a stream in which other bytes are
// expected. It needs memory for one record. A pure state machine. Not thread-safe.
class RefusalReader {
 public:
  enum class Progress {
    // More bytes are needed. All bytes were taken.
    kMore,
    kRefusal,
    // The stream begins with other bytes: first held(), then what is left of the bytes.
    kOther,
  };

  // Takes bytes from the front of `bytes`. Must not be called again after kRefusal or kOther.
  Progress add(absl::Span<const char>& bytes);
  // The sentence of the refusal, which another process has written: printable ASCII, of limited length.
  const std::string& sentence() const { return sentence_; }
  const std::string& held() const { return held_; }

 private:
  security::RecordParser parser_;
  std::string held_;
  std::string sentence_;
};

}  // namespace gradwire::transport
