#include "transport/tcp/frame.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/error.h"

namespace gradwire::transport {
namespace {

constexpr char kMagic[4] = {'G', 'W', 'f', '1'};
constexpr char kVersion = 1;
// A header's memory grows with what has arrived, so that announcing a long one takes none.
constexpr std::size_t kHeaderStep = std::size_t{64} << 10;

template <class Integer>
void append_integer(std::string& out, Integer value) {
  for (std::size_t i = 0; i < sizeof(value); ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

template <class Integer>
Integer read_integer(const char* bytes) {
  Integer value = 0;
  for (std::size_t i = 0; i < sizeof(value); ++i) {
    value |= static_cast<Integer>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

absl::Status over_limit(absl::string_view what, uint64_t amount, absl::string_view limit_name,
                        uint64_t limit) {
  return absl::InvalidArgumentError(
      absl::StrCat("a frame announces ", what, " ", amount, ", over the limit ", limit_name, " = ", limit));
}

absl::Status check_buffer_size(uint64_t size, uint64_t& total, const Limits& limits) {
  if (size > limits.max_buffer_bytes) {
    return over_limit("a buffer's bytes as", size, "max_buffer_bytes", limits.max_buffer_bytes);
  }
  if (total > limits.max_message_bytes || size > limits.max_message_bytes - total) {
    return over_limit("its bytes in all as at least", std::max(total, size), "max_message_bytes",
                      limits.max_message_bytes);
  }
  total += size;
  return absl::OkStatus();
}

}  // namespace

std::string encode_frame_start(const Message& message) {
  std::string out;
  out.reserve(kFramePrefixBytes + 8 * message.buffers.size());
  out.append(kMagic, sizeof(kMagic));
  out.push_back(kVersion);
  out.append(3, '\0');
  append_integer<uint64_t>(out, message.header.size());
  append_integer<uint32_t>(out, static_cast<uint32_t>(message.buffers.size()));
  append_integer<uint32_t>(out, 0);
  for (const Buffer& buffer : message.buffers) append_integer<uint64_t>(out, buffer.size());
  return out;
}

absl::Status check_frame_limits(uint64_t header_bytes, uint64_t buffer_count, const Limits& limits) {
  if (header_bytes > limits.max_header_bytes) {
    return over_limit("its header's bytes as", header_bytes, "max_header_bytes", limits.max_header_bytes);
  }
  if (buffer_count > limits.max_buffers) {
    return over_limit("its number of buffers as", buffer_count, "max_buffers", limits.max_buffers);
  }
  return absl::OkStatus();
}

absl::Status check_frame_limits(uint64_t header_bytes, absl::Span<const uint64_t> buffer_sizes,
                                const Limits& limits) {
  GRADWIRE_RETURN_IF_ERROR(check_frame_limits(header_bytes, buffer_sizes.size(), limits));
  uint64_t total = header_bytes;
  for (uint64_t size : buffer_sizes) GRADWIRE_RETURN_IF_ERROR(check_buffer_size(size, total, limits));
  return absl::OkStatus();
}

absl::Status check_frame_limits(const Message& message, const Limits& limits) {
  GRADWIRE_RETURN_IF_ERROR(check_frame_limits(message.header.size(), message.buffers.size(), limits));
  uint64_t total = message.header.size();
  for (const Buffer& buffer : message.buffers) {
    GRADWIRE_RETURN_IF_ERROR(check_buffer_size(buffer.size(), total, limits));
  }
  return absl::OkStatus();
}

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
  // Only as many buffers as are read into now: a sender that announces many and sends none takes no memory.
  std::size_t skip = stage_ == Stage::kBuffers ? filled_ : 0;
  for (std::size_t i = buffer_index_; i < sizes_.size() && count < max; ++i) {
    GRADWIRE_RETURN_IF_ERROR(allocate_buffers(i + 1));
    const Buffer& buffer = message_.buffers[i];
    if (buffer.size() > 0) add(static_cast<char*>(buffer.data()) + skip, buffer.size() - skip);
    skip = 0;
  }
  return count;
}

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

Message FrameParser::take() {
  Message message = std::move(message_);
  message_ = Message();
  stage_ = Stage::kPrefix;
  filled_ = 0;
  sizes_.clear();
  buffer_index_ = 0;
  return message;
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
      return sizes_[buffer_index_];
    case Stage::kComplete:
      return 0;
  }
  return 0;
}

absl::Status FrameParser::check_prefix_so_far() const {
  std::size_t known = std::min(filled_, sizeof(kMagic));
  if (std::memcmp(prefix_, kMagic, known) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("what arrived is no frame: it begins with \"",
                     absl::CHexEscape(absl::string_view(prefix_, known)), "\" instead of \"",
                     absl::string_view(kMagic, sizeof(kMagic)), "\"; is the other end a Gradwire worker?"));
  }
  if (filled_ > 4 && prefix_[4] != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("a frame of version ",
                                                   static_cast<unsigned char>(prefix_[4]),
                                                   " arrived; this process knows version ", int{kVersion}));
  }
  return absl::OkStatus();
}

absl::Status FrameParser::finish_stage() {
  filled_ = 0;
  switch (stage_) {
    case Stage::kPrefix: {
      if (prefix_[5] != 0 || read_integer<uint16_t>(prefix_ + 6) != 0 ||
          read_integer<uint32_t>(prefix_ + 20) != 0) {
        return absl::InvalidArgumentError(
            "a frame has flags or reserved bytes that this process does not know");
      }
      header_bytes_ = read_integer<uint64_t>(prefix_ + 8);
      uint64_t buffer_count = read_integer<uint32_t>(prefix_ + 16);
      GRADWIRE_RETURN_IF_ERROR(check_frame_limits(header_bytes_, buffer_count, limits_));
      sizes_.resize(buffer_count);
      stage_ = Stage::kSizes;
      return absl::OkStatus();
    }
    case Stage::kSizes:
      for (uint64_t& size : sizes_) size = read_integer<uint64_t>(reinterpret_cast<const char*>(&size));
      GRADWIRE_RETURN_IF_ERROR(check_frame_limits(header_bytes_, sizes_, limits_));
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
  GRADWIRE_RETURN_IF_ERROR(allocate_buffers(sizes_.size()));
  stage_ = Stage::kComplete;
  return absl::OkStatus();
}

void FrameParser::skip_empty_buffers() {
  while (buffer_index_ < sizes_.size() && sizes_[buffer_index_] == 0) ++buffer_index_;
}

absl::Status FrameParser::allocate_buffers(std::size_t end) {
  while (message_.buffers.size() < end) {
    GRADWIRE_ASSIGN_OR_RETURN(Buffer buffer, pool_.allocate(sizes_[message_.buffers.size()]));
    message_.buffers.push_back(std::move(buffer));
  }
  return absl::OkStatus();
}

}  // namespace gradwire::transport
