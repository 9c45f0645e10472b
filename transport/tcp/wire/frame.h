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

// The format of messages in a TCP stream. Frames follow one another without padding. Integers are
// little-endian.
//
//   offset  bytes  content
//   0       4      magic: the characters "GWf1"
//   4       1      version: 2
//   5       1      kind: 0 a message, 1 a control frame (stripe_control.h)
//   6       1      k, the number of stripes that carry parts of this message's buffers; 0: none
//   7       1      reserved: 0
//   8       8      h, the length of the header in bytes
//   16      4      n, the number of buffers
//   20      4      reserved: 0
//   24      8 n    s[0] ... s[n-1], the length of each buffer in bytes; 0 is allowed. If the top bit is set,
//                  the buffer is striped: only its first share follows in this stream
//   24+8n   h      the header
//   ...     s[i]   the buffers in order
//
// A striped buffer has at least kMinStripedBytes and is divided into k + 1 shares (stripe_share): the first
// one is in this stream, share j on stripe j. All shares have the same size, a (k + 1)th of the buffer
// rounded up to a multiple of 4096 bytes; the last one ends at the end of the buffer, and shares behind it
// are empty. A stripe carries only shares, in the order of their buffers.
//
// A receiver checks h, n, each s[i] and their sum against its limits before it allocates memory. Any error in
// a frame closes the connection, because the begin of the next frame cannot be found.
inline constexpr std::size_t kFramePrefixBytes = 24;
inline constexpr int kMaxStripes = 8;
inline constexpr uint64_t kMinStripedBytes = uint64_t{64} << 10;

// Selects the buffers of a message that are striped, and the number of stripes.
struct Striping {
  int stripes = 0;
  // The minimum size of a striped buffer; at least kMinStripedBytes.
  uint64_t from_bytes = kMinStripedBytes;

  bool covers(uint64_t size) const { return stripes > 0 && size >= from_bytes; }
};

struct StripeShare {
  uint64_t offset = 0;
  uint64_t size = 0;
};
// Returns share `index` of a striped buffer; share 0 is sent on the connection itself. The last shares may be
// empty.
StripeShare stripe_share(uint64_t buffer_bytes, int stripes, int index);

// Encode the frame of `message` up to the begin of its header.
std::string encode_frame_start(const Message& message, const Striping& striping = Striping());
void append_frame_start(std::string& out, const Message& message, const Striping& striping = Striping());

// Encodes a control frame with this header.
std::string encode_control_frame(absl::string_view header);

// Assembles messages from a stream of bytes that arrives in pieces of any size. It provides the memory for
// the next bytes, so that the caller can read them from a socket directly to their destination.
//
//   iovec places[4];
//   absl::StatusOr<int> count = parser.places(places, 4);   // read or copy to these places
//   absl::Status status = parser.advance(bytes_that_were_written);
//   if (parser.complete()) use(parser.take());
//
// Not thread-safe. Must not be used after an error.
class FrameParser {
 public:
  // The memory for a share that arrives on a stripe.
  struct ShareMemory {
    int stripe;
    void* data;
    std::size_t size;
  };

  // `pool` must outlive the parser.
  FrameParser(const Limits& limits, BufferPool& pool) : limits_(limits), frame_limits_(limits), pool_(pool) {}

  // Sets a lower limit for the header and the total size of later messages. Must not be called in the middle
  // of a frame.
  void set_max_message_bytes(uint64_t bytes) {
    frame_limits_.max_header_bytes = std::min<uint64_t>(limits_.max_header_bytes, bytes);
    frame_limits_.max_message_bytes = std::min(limits_.max_message_bytes, bytes);
  }

  // Sets the number of stripes that frames may use. Must not be called in the middle of a frame.
  void set_stripes(int stripes) { stripes_ = stripes; }

  // Returns the memory for the next bytes of the stream: between 1 and `max` places, in order, none of them
  // empty, none beyond the end of this frame. REQUIRES: !complete(). ResourceExhausted if no memory is left
  // for the header, or for a striped buffer. Without memory for other buffers, the places are memory that is
  // overwritten by the next bytes, and valid on this thread only.
  absl::StatusOr<int> places(iovec* places, int max);

  // Must be called after `bytes` bytes were written to the places. InvalidArgument for a malformed frame or
  // one over a limit.
  absl::Status advance(std::size_t bytes);

  // Copies bytes of the stream to their places until `bytes` is empty or a message is complete.
  absl::Status consume(absl::Span<const char>& bytes);

  // Whether the part of the frame in this stream is complete.
  bool complete() const { return stage_ == Stage::kComplete; }
  // Whether there was memory for the buffers of the frame. If not, ResourceExhausted, and take() returns the
  // header only.
  const absl::Status& lost() const { return lost_; }
  // Returns the complete message, and begins the next frame. REQUIRES: complete(), and the shares on stripes
  // have been received.
  Message take();
  // Whether the complete frame is a control frame; take() returns its header.
  bool is_control() const { return control_; }
  // Returns the places for shares on stripes that have become known since the last call, in the order in
  // which their bytes arrive. They are valid until take().
  std::vector<ShareMemory> take_stripe_places() { return std::exchange(stripe_places_, {}); }
  bool has_stripe_places() const { return !stripe_places_.empty(); }

  // A message whose header is complete, and how many of its bytes have arrived in this stream.
  struct Arriving {
    const std::string& header;
    uint64_t bytes;
    uint64_t arrived;
  };
  // Whether the header of a message is complete and arriving() was not called for it.
  bool has_arriving() const {
    return !announced_ && !control_ && (stage_ == Stage::kBuffers || stage_ == Stage::kComplete);
  }
  // REQUIRES: has_arriving().
  Arriving arriving();

  // Whether the stream is between two frames, so that it may end.
  bool between_frames() const { return stage_ == Stage::kPrefix && filled_ == 0; }

 private:
  enum class Stage { kPrefix, kSizes, kHeader, kBuffers, kComplete };

  std::size_t stage_bytes() const;
  absl::Status check_prefix_so_far() const;
  // Fast path for the usual case: parses a complete small frame at the front of `bytes`. Otherwise returns
  // false and changes nothing.
  bool consume_whole(absl::Span<const char>& bytes);
  // Number of bytes of the buffer at `index` that are in this stream.
  std::size_t bytes_in_stream(std::size_t index) const;
  absl::Status finish_stage();
  absl::Status check_sizes();
  void skip_empty_buffers();
  absl::Status allocate_buffers(std::size_t end);
  // Without memory: drops the bytes of all buffers of the frame, unless some arrive on stripes.
  absl::Status lose(absl::Status reason);

  const Limits limits_;
  // The limits for the current frame.
  Limits frame_limits_;
  BufferPool& pool_;
  int stripes_ = 0;

  Stage stage_ = Stage::kPrefix;
  // Number of received bytes of the current stage; in kBuffers, of the buffer at buffer_index_.
  std::size_t filled_ = 0;
  char prefix_[kFramePrefixBytes];
  bool control_ = false;
  bool announced_ = false;
  // Number of stripes that this frame uses.
  int frame_stripes_ = 0;
  uint64_t header_bytes_ = 0;
  // The sizes of the buffers; striped buffers have the top bit set.
  std::vector<uint64_t> sizes_;
  std::size_t buffer_index_ = 0;
  Message message_;
  // Why the buffers are dropped.
  absl::Status lost_;
  std::vector<ShareMemory> stripe_places_;
};

}  // namespace gradwire::transport
