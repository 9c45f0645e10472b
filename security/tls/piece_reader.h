#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gradwire::security {

// Reads pieces of memory one after the other, as records of a bounded size. A record that begins in one piece
// and goes on in the next ones is copied together. Not thread-safe. The pieces must outlive it.
class PieceReader {
 public:
  explicit PieceReader(absl::Span<const iovec> pieces) : pieces_(pieces) {
    for (const iovec& piece : pieces) size_ += piece.iov_len;
    drop_empty();
  }

  // The bytes that remain.
  size_t size() const { return size_; }

  // Precondition: `size` bytes remain.
  void skip(size_t size) {
    size_ -= size;
    while (size > 0) {
      const size_t part = std::min(size, here());
      offset_ += part;
      size -= part;
      drop_empty();
    }
  }

  // Whether next() copies the next record, of at most `most` bytes.
  bool needs_copy(size_t most) const { return here() < std::min(most, size_); }

  // Returns the next min(most, size()) bytes: in place, or copied to `room`, which has room for them.
  absl::string_view next(size_t most, char* room) {
    const size_t size = std::min(most, size_);
    if (!needs_copy(most)) {
      const absl::string_view bytes(begin(), size);
      skip(size);
      return bytes;
    }
    for (size_t done = 0; done < size;) {
      const size_t part = std::min(size - done, here());
      std::memcpy(room + done, begin(), part);
      done += part;
      skip(part);
    }
    return {room, size};
  }

 private:
  const char* begin() const { return static_cast<const char*>(pieces_.front().iov_base) + offset_; }
  // The remaining bytes of the current piece.
  size_t here() const { return pieces_.empty() ? 0 : pieces_.front().iov_len - offset_; }
  void drop_empty() {
    while (!pieces_.empty() && here() == 0) {
      pieces_.remove_prefix(1);
      offset_ = 0;
    }
  }

  absl::Span<const iovec> pieces_;
  size_t offset_ = 0;
  size_t size_ = 0;
};

}  // namespace gradwire::security
