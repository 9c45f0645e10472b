#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/message.h"

namespace gradwire::transport {

// How a message lies in a TCP stream. Frames follow one another without padding; integers are little-endian.
//
//   offset  bytes  what
//   0       4      magic: the characters "GWf1"
//   4       1      version: 2
//   5       1      kind: 0 a message, 1 a control frame (stripe_control.h)
//   6       1      k, the number of stripes that carry parts of this message's buffers; 0: none
//   7       1      reserved: 0
//   8       8      h, the length of the header in bytes
//   16      4      n, the number of buffers
//   20      4      reserved: 0
//   24      8 n    s[0] ... s[n-1], the length of each buffer in bytes; 0 is allowed. With the top bit set
//                  the buffer is striped: only its first share follows here
//   24+8n   h      the header
//   ...     s[i]   the buffers in order
//
// A striped buffer has at least kMinStripedBytes and is cut into k + 1 shares (stripe_share): the first
// travels here, share j on stripe j. All are of one size, the (k + 1)th part of the buffer rounded up to a
// multiple of 4096 bytes, but for the last, where the buffer ends; shares behind that are empty. A stripe is
// a stream of shares and nothing else, in the order of their buffers.
//
// A receiver checks h, n, each s[i] and h + s[0] + ... against its limits before it allocates memory for
// them. Whatever is wrong with a frame ends the connection: there is no way to find the next one.
inline constexpr std::size_t kFramePrefixBytes = 24;
inline constexpr int kMaxStripes = 8;
inline constexpr uint64_t kMinStripedBytes = uint64_t{64} << 10;

// Which buffers of a message are striped, and over how many stripes.
struct Striping {
  int stripes = 0;
  // At least kMinStripedBytes.
  uint64_t from_bytes = kMinStripedBytes;

  bool covers(uint64_t size) const { return stripes > 0 && size >= from_bytes; }
};

struct StripeShare {
  uint64_t offset = 0;
  uint64_t size = 0;
};
// Share `index` (0: on the connection itself) of a striped buffer. The last ones may be empty.
StripeShare stripe_share(uint64_t buffer_bytes, int stripes, int index);

// The frame of `message` up to its header.
std::string encode_frame_start(const Message& message, const Striping& striping = Striping());
void append_frame_start(std::string& out, const Message& message, const Striping& striping = Striping());

// A control frame with this header.
std::string encode_control_frame(absl::string_view header);

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
  // Where a share that travels on a stripe belongs.
  struct Place {
    int stripe;
    void* data;
    std::size_t size;
  };

  // `pool` outlives the parser.
  FrameParser(const Limits& limits, BufferPool& pool) : limits_(limits), frame_limits_(limits), pool_(pool) {}

  // Further bounds the header and the whole of each message that begins after this. Not in the middle of a
  // frame.
  void set_max_message_bytes(uint64_t bytes) {
    frame_limits_.max_header_bytes = std::min<uint64_t>(limits_.max_header_bytes, bytes);
    frame_limits_.max_message_bytes = std::min(limits_.max_message_bytes, bytes);
  }

  // The connection has so many stripes: frames may use them. Not in the middle of a frame.
  void set_stripes(int stripes) { stripes_ = stripes; }

  // The memory where the following bytes of the stream belong, in order, none of it empty and none beyond the
  // end of this frame: between 1 and `max` places. Requires !complete(). ResourceExhausted when there is no
  // memory.
  absl::StatusOr<int> places(iovec* places, int max);

  // `bytes` bytes were written there; no more than the places have. InvalidArgument for what is no frame, or
  // over a limit.
  absl::Status advance(std::size_t bytes);

  // Puts bytes of the stream in place until `bytes` is empty or a message is complete.
  absl::Status consume(absl::Span<const char>& bytes);

  // All of the frame has come that travels in this stream.
  bool complete() const { return stage_ == Stage::kComplete; }
  // The complete message; the next frame begins. Requires complete(), and that the shares in places on
  // stripes have come.
  Message take();
  // The complete frame is a control frame, whose header take() gives.
  bool is_control() const { return control_; }
  // The places on stripes that have become known since the last call, in the order in which their bytes come.
  // They are valid until take().
  std::vector<Place> take_stripe_places() { return std::exchange(stripe_places_, {}); }
  bool has_stripe_places() const { return !stripe_places_.empty(); }

  // Whether the stream may end here.
  bool between_frames() const { return stage_ == Stage::kPrefix && filled_ == 0; }

 private:
  enum class Stage { kPrefix, kSizes, kHeader, kBuffers, kComplete };

  std::size_t stage_bytes() const;
  absl::Status check_prefix_so_far() const;
  // A whole small frame at the front of `bytes`, which is the usual case. False, having done nothing, for any
  // other.
  bool consume_whole(absl::Span<const char>& bytes);
  // The bytes of the buffer at `index` that travel in this stream.
  std::size_t bytes_here(std::size_t index) const;
  absl::Status finish_stage();
  absl::Status check_sizes();
  void skip_empty_buffers();
  absl::Status allocate_buffers(std::size_t end);

  const Limits limits_;
  // What is left of them for the current frame.
  Limits frame_limits_;
  BufferPool& pool_;
  int stripes_ = 0;

  Stage stage_ = Stage::kPrefix;
  // Of the current stage, or in kBuffers of the buffer at buffer_index_.
  std::size_t filled_ = 0;
  char prefix_[kFramePrefixBytes];
  bool control_ = false;
  // That this frame uses.
  int frame_stripes_ = 0;
  uint64_t header_bytes_ = 0;
  // With the top bit of striped buffers.
  std::vector<uint64_t> sizes_;
  std::size_t buffer_index_ = 0;
  Message message_;
  std::vector<Place> stripe_places_;
};

}  // namespace gradwire::transport
