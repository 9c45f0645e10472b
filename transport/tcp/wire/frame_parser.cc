// Two ways to parse frames. For a frame that is read into scratch memory: consume(), which copies. For a
// long frame that has begun: places() names the memory that the next bytes belong to, the caller reads into
// it, and advance() notes how many arrived; so large buffers are not copied.

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/transport/common/message_sizes.h"
#include "gradwire/transport/tcp/wire/frame.h"
#include "gradwire/transport/tcp/wire/frame_format.h"

namespace gradwire::transport {
namespace {

using frame_format::kMagic;
using frame_format::kStripedBit;
using frame_format::kVersion;
using frame_format::read_integer;

// The memory of a header grows with the received bytes, so that an announced size alone uses no memory.
constexpr std::size_t kHeaderStep = std::size_t{64} << 10;
// Maximum number of buffers of a frame for the fast path.
constexpr uint32_t kMaxWholeBuffers = 16;

// Where the bytes of lost buffers go. Nobody reads them.
constexpr std::size_t kDroppedBytes = std::size_t{16} << 10;
thread_local char dropped[kDroppedBytes];

}  // namespace

absl::StatusOr<int> FrameParser::places(iovec* places, int max) {
  int count = 0;
  auto add = [&count, places](void* memory, std::size_t size) {
    places[count].iov_base = memory;
    places[count].iov_len = size;
    ++count;
  };
  switch (stage_) {
    case Stage::kPrefix:
      add(prefix_ + filled_, kFramePrefixBytes - filled_);
      return count;
    case Stage::kSizes:
      add(reinterpret_cast<char*>(sizes_.data()) + filled_, stage_bytes() - filled_);
      return count;
    case Stage::kHeader: {
      if (filled_ == message_.header.size()) {
        std::size_t step = std::max(kHeaderStep, filled_);
        try {
          // The size doubles at most, so growing copies each byte about once.
          message_.header.resize(std::min<uint64_t>(header_bytes_, filled_ + step));
        } catch (const std::bad_alloc&) {
          return absl::ResourceExhaustedError(
              absl::StrCat("no memory for a header of ", header_bytes_, " bytes"));
        }
      }
      add(message_.header.data() + filled_, message_.header.size() - filled_);
      if (message_.header.size() < header_bytes_) return count;
      break;
    }
    case Stage::kBuffers:
      break;
    case Stage::kComplete:
      return absl::InternalError("places() of a complete frame");
  }
  // Allocate only the buffers that are read into now, so that a sender that announces many buffers and sends
  // none uses no memory.
  std::size_t skip = stage_ == Stage::kBuffers ? filled_ : 0;
  for (std::size_t i = buffer_index_; i < sizes_.size() && count < max; ++i) {
    if (lost_.ok()) {
      absl::Status allocated = allocate_buffers(i + 1);
      if (!allocated.ok() && count > 0) return count;  // The caller reads into earlier buffers first.
      if (!allocated.ok()) GRADWIRE_RETURN_IF_ERROR(lose(std::move(allocated)));
    }
    if (!lost_.ok()) {
      if (count == 0) add(dropped, std::min(bytes_in_stream(i) - skip, kDroppedBytes));
      return count;
    }
    if (bytes_in_stream(i) > 0)
      add(static_cast<char*>(message_.buffers[i].data()) + skip, bytes_in_stream(i) - skip);
    skip = 0;
  }
  return count;
}

// The stages of a frame are kPrefix, kSizes, kHeader, kBuffers and kComplete. An empty stage is finished at
// once, so that one call may pass through several stages.
absl::Status FrameParser::advance(std::size_t bytes) {
  while (stage_ != Stage::kComplete) {
    std::size_t step = std::min(bytes, stage_bytes() - filled_);
    filled_ += step;
    bytes -= step;
    if (stage_ == Stage::kPrefix) GRADWIRE_RETURN_IF_ERROR(check_prefix_so_far());
    if (filled_ < stage_bytes()) break;
    GRADWIRE_RETURN_IF_ERROR(finish_stage());
  }
  if (bytes > 0) return absl::InternalError("more bytes than the places of a frame hold");
  return absl::OkStatus();
}

absl::Status FrameParser::consume(absl::Span<const char>& bytes) {
  if (between_frames() && consume_whole(bytes)) return absl::OkStatus();
  while (!bytes.empty() && !complete()) {
    iovec place;
    GRADWIRE_RETURN_IF_ERROR(places(&place, 1).status());
    std::size_t count = std::min(bytes.size(), place.iov_len);
    std::memcpy(place.iov_base, bytes.data(), count);
    bytes.remove_prefix(count);
    GRADWIRE_RETURN_IF_ERROR(advance(count));
  }
  return absl::OkStatus();
}

// The fast path for a frame that lies completely in `bytes`. It copies header and buffers directly.
// Whatever is unusual returns false and changes nothing: a frame that is incomplete, striped, a control
// frame, invalid or over a limit. The slow path then parses the same bytes and returns the error.
bool FrameParser::consume_whole(absl::Span<const char>& bytes) {
  if (bytes.size() < kFramePrefixBytes) return false;
  const char* const frame = bytes.data();
  static constexpr char kUsual[8] = {kMagic[0], kMagic[1], kMagic[2], kMagic[3], kVersion};
  const auto header_bytes = read_integer<uint64_t>(frame + 8);
  const auto buffers = read_integer<uint32_t>(frame + 16);
  std::size_t left = bytes.size() - kFramePrefixBytes;
  if (std::memcmp(frame, kUsual, sizeof(kUsual)) != 0 || read_integer<uint32_t>(frame + 20) != 0 ||
      buffers > kMaxWholeBuffers || left < 8 * buffers ||
      !MessageSizes(frame_limits_).begin(header_bytes, buffers).ok()) {
    return false;
  }
  left -= 8 * buffers;
  // Each size is at most `left`, and there are few of them, so the sum cannot overflow.
  uint64_t sizes[kMaxWholeBuffers];
  uint64_t total = header_bytes;
  if (header_bytes > left) return false;
  for (uint32_t i = 0; i < buffers; ++i) {
    sizes[i] = read_integer<uint64_t>(frame + kFramePrefixBytes + 8 * i);
    if (sizes[i] > left) return false;
    total += sizes[i];
  }
  if (total > left ||
      !check_message_sizes(header_bytes, absl::MakeConstSpan(sizes, buffers), frame_limits_).ok())
    return false;
  const char* next = frame + kFramePrefixBytes + 8 * buffers;
  try {
    message_.header.assign(next, header_bytes);
    message_.buffers.reserve(buffers);
  } catch (const std::bad_alloc&) {
    message_ = Message();
    return false;
  }
  next += header_bytes;
  for (uint32_t i = 0; i < buffers; ++i) {
    absl::StatusOr<Buffer> buffer = pool_.allocate(sizes[i]);
    if (!buffer.ok()) {
      message_ = Message();
      return false;
    }
    if (sizes[i] > 0) std::memcpy(buffer->data(), next, sizes[i]);
    next += sizes[i];
    message_.buffers.push_back(*std::move(buffer));
  }
  // The whole frame was parsed: only now change the state.
  bytes.remove_prefix(static_cast<std::size_t>(next - frame));
  control_ = false;
  stage_ = Stage::kComplete;
  return true;
}

Message FrameParser::take() {
  Message message = std::move(message_);
  message_ = Message();
  lost_ = absl::OkStatus();
  stage_ = Stage::kPrefix;
  announced_ = false;
  filled_ = 0;
  sizes_.clear();
  buffer_index_ = 0;
  stripe_places_.clear();
  return message;
}

FrameParser::Arriving FrameParser::arriving() {
  announced_ = true;
  uint64_t bytes = header_bytes_;
  uint64_t arrived = header_bytes_ + filled_;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    bytes += sizes_[i] & ~kStripedBit;
    if (i < buffer_index_) arrived += bytes_in_stream(i);
  }
  return {message_.header, bytes, arrived};
}

// A striped buffer has only its first share in the stream.
std::size_t FrameParser::bytes_in_stream(std::size_t index) const {
  const uint64_t size = sizes_[index];
  if ((size & kStripedBit) == 0) return size;
  return stripe_share(size & ~kStripedBit, frame_stripes_, 0).size;
}

std::size_t FrameParser::stage_bytes() const {
  switch (stage_) {
    case Stage::kPrefix:
      return kFramePrefixBytes;
    case Stage::kSizes:
      return sizes_.size() * sizeof(uint64_t);
    case Stage::kHeader:
      return header_bytes_;
    case Stage::kBuffers:
      return bytes_in_stream(buffer_index_);
    case Stage::kComplete:
      return 0;
  }
  return 0;
}

// Returns OK if the received part of the prefix can be the beginning of a frame.
absl::Status FrameParser::check_prefix_so_far() const {
  // Checked at each byte, so that a peer with another protocol is refused before it has sent a whole prefix.
  std::size_t known = std::min(filled_, sizeof(kMagic));
  if (std::memcmp(prefix_, kMagic, known) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot parse a frame: it begins with \"",
                     absl::CHexEscape(absl::string_view(prefix_, known)), "\", expected \"",
                     absl::string_view(kMagic, sizeof(kMagic)), "\"; the peer may not be a Gradwire worker"));
  }
  if (filled_ > 4 && prefix_[4] != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("cannot parse a frame: got version ",
                                                   static_cast<unsigned char>(prefix_[4]),
                                                   ", expected version ", int{kVersion}));
  }
  return absl::OkStatus();
}

absl::Status FrameParser::finish_stage() {
  filled_ = 0;
  switch (stage_) {
    case Stage::kPrefix: {
      control_ = prefix_[5] == frame_format::kControlKind;
      frame_stripes_ = static_cast<unsigned char>(prefix_[6]);
      header_bytes_ = read_integer<uint64_t>(prefix_ + 8);
      const uint64_t buffer_count = read_integer<uint32_t>(prefix_ + 16);
      if ((prefix_[5] != frame_format::kMessageKind && !control_) || prefix_[7] != 0 ||
          read_integer<uint32_t>(prefix_ + 20) != 0) {
        return absl::InvalidArgumentError(
            "cannot parse a frame: unknown kind, or reserved bytes that are not 0");
      }
      // stripes_ is 0 until the handshake of the stripes is complete.
      if (frame_stripes_ > stripes_) {
        return absl::InvalidArgumentError(
            absl::StrCat("a frame uses ", frame_stripes_, " stripes, but the connection has ", stripes_));
      }
      if (control_ &&
          (frame_stripes_ > 0 || buffer_count > 0 || header_bytes_ > frame_format::kMaxControlBytes)) {
        return absl::InvalidArgumentError("a control frame is too long or has buffers");
      }
      GRADWIRE_RETURN_IF_ERROR(MessageSizes(frame_limits_).begin(header_bytes_, buffer_count));
      sizes_.resize(buffer_count);
      stage_ = Stage::kSizes;
      return absl::OkStatus();
    }
    case Stage::kSizes:
      GRADWIRE_RETURN_IF_ERROR(check_sizes());
      stage_ = Stage::kHeader;
      return absl::OkStatus();
    case Stage::kHeader:
      stage_ = Stage::kBuffers;
      skip_empty_buffers();
      break;
    case Stage::kBuffers:
      ++buffer_index_;
      skip_empty_buffers();
      break;
    case Stage::kComplete:
      return absl::OkStatus();
  }
  if (buffer_index_ < sizes_.size()) return absl::OkStatus();
  if (lost_.ok()) {
    absl::Status allocated = allocate_buffers(sizes_.size());
    if (!allocated.ok()) GRADWIRE_RETURN_IF_ERROR(lose(std::move(allocated)));
  }
  stage_ = Stage::kComplete;
  return absl::OkStatus();
}

absl::Status FrameParser::check_sizes() {
  // Check the sizes without the bit, then set the bit again.
  // The sizes have the byte order of the wire until here.
  std::vector<std::size_t> striped;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    uint64_t& size = sizes_[i];
    size = read_integer<uint64_t>(reinterpret_cast<const char*>(&size));
    if ((size & kStripedBit) == 0) continue;
    size &= ~kStripedBit;
    if (frame_stripes_ == 0 || size < kMinStripedBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("invalid striped buffer in a frame: got ", size, " bytes on ", frame_stripes_,
                       " stripes, expected at least ", kMinStripedBytes, " bytes on at least 1 stripe"));
    }
    striped.push_back(i);
  }
  GRADWIRE_RETURN_IF_ERROR(check_message_sizes(header_bytes_, sizes_, frame_limits_));
  for (std::size_t index : striped) sizes_[index] |= kStripedBit;
  return absl::OkStatus();
}

void FrameParser::skip_empty_buffers() {
  while (buffer_index_ < sizes_.size() && sizes_[buffer_index_] == 0) ++buffer_index_;
}

absl::Status FrameParser::lose(absl::Status reason) {
  // The stripes would have no place for their shares.
  for (const uint64_t size : sizes_) {
    if ((size & kStripedBit) != 0) return reason;
  }
  lost_ = std::move(reason);
  message_.buffers.clear();
  return absl::OkStatus();
}

// Allocates the buffers before index `end`. The places of the shares become known with the memory of their
// buffer, so a striped buffer is allocated as a whole, although only a part of it arrives here.
absl::Status FrameParser::allocate_buffers(std::size_t end) {
  while (message_.buffers.size() < end) {
    const uint64_t size = sizes_[message_.buffers.size()];
    GRADWIRE_ASSIGN_OR_RETURN(Buffer buffer, pool_.allocate(size & ~kStripedBit));
    if ((size & kStripedBit) != 0) {
      for (int stripe = 1; stripe <= frame_stripes_; ++stripe) {
        const StripeShare share = stripe_share(buffer.size(), frame_stripes_, stripe);
        if (share.size > 0) {
          stripe_places_.push_back({stripe, static_cast<char*>(buffer.data()) + share.offset, share.size});
        }
      }
    }
    message_.buffers.push_back(std::move(buffer));
  }
  return absl::OkStatus();
}

}  // namespace gradwire::transport
