#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "security/limits.h"
#include "transport/buffer_pool.h"
#include "transport/message.h"

namespace gradwire::transport {

// How a message lies in a TCP stream. Frames follow one another without padding; integers are little-endian.
//
//   offset  bytes  what
//   0       4      magic: the characters "GWf1"
//   4       1      version: 1
//   5       1      flags: 0; a receiver refuses bits that it does not know
//   6       2      reserved: 0
//   8       8      h, the length of the header in bytes
//   16      4      n, the number of buffers
//   20      4      reserved: 0
//   24      8 n    s[0] ... s[n-1], the length of each buffer in bytes; 0 is allowed
//   24+8n   h      the header
//   ...     s[i]   the buffers in order
//
// A receiver checks h, n, each s[i] and h + s[0] + ... against its limits before it allocates memory for
// them. Whatever is wrong with a frame ends the connection: there is no way to find the next one.
inline constexpr std::size_t kFramePrefixBytes = 24;

// The frame of `message` up to its header.
std::string encode_frame_start(const Message& message);

// InvalidArgument that names the limit which a message of these sizes is over.
absl::Status check_frame_limits(uint64_t header_bytes, uint64_t buffer_count, const Limits& limits);
absl::Status check_frame_limits(uint64_t header_bytes, absl::Span<const uint64_t> buffer_sizes,
                                const Limits& limits);
absl::Status check_frame_limits(const Message& message, const Limits& limits);

// Puts messages together from a stream of bytes, whatever the pieces it comes in. It says where the next
// bytes belong, so that the caller can read them from a socket right into place.
//
//   iovec places[4];
//   absl::StatusOr<int> count = parser.places(places, 4);   // read or copy there
//   absl::Status status = parser.advance(bytes_that_were_put_there);
//   if (parser.complete()) use(parser.take());
//
// Not thread-safe. After an error it must not be used again.
class FrameParser {
 public:
  // Both outlive the parser.
  FrameParser(const Limits& limits, BufferPool& pool) : limits_(limits), pool_(pool) {}

  // The memory where the following bytes of the stream belong, in order, none of it empty and none beyond the
  // end of this frame: between 1 and `max` places. Requires !complete(). ResourceExhausted when there is no
  // memory.
  absl::StatusOr<int> places(iovec* places, int max);

  // `bytes` bytes were written there; no more than the places have. InvalidArgument for what is no frame, or
  // over a limit.
  absl::Status advance(std::size_t bytes);

  // Puts bytes of the stream in place until `bytes` is empty or a message is complete.
  absl::Status consume(absl::Span<const char>& bytes);

  bool complete() const { return stage_ == Stage::kComplete; }
  // The complete message; the next frame begins. Requires complete().
  Message take();

  // Whether the stream may end here.
  bool between_frames() const { return stage_ == Stage::kPrefix && filled_ == 0; }

 private:
  enum class Stage { kPrefix, kSizes, kHeader, kBuffers, kComplete };

  std::size_t stage_bytes() const;
  absl::Status check_prefix_so_far() const;
  absl::Status finish_stage();
  void skip_empty_buffers();
  absl::Status allocate_buffers(std::size_t end);

  const Limits& limits_;
  BufferPool& pool_;

  Stage stage_ = Stage::kPrefix;
  // Of the current stage, or in kBuffers of the buffer at buffer_index_.
  std::size_t filled_ = 0;
  char prefix_[kFramePrefixBytes];
  uint64_t header_bytes_ = 0;
  std::vector<uint64_t> sizes_;
  std::size_t buffer_index_ = 0;
  Message message_;
};

}  // namespace gradwire::transport
