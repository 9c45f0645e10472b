#include "gradwire/tests/fuzz/frame_fuzzer.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "gradwire/tests/fuzz/fuzzing.h"
#include "gradwire/transport/tcp/wire/frame.h"

namespace {

using gradwire::Limits;
using gradwire::fuzzing::require;
using gradwire::transport::Buffer;
using gradwire::transport::BufferPool;
using gradwire::transport::FrameParser;
using gradwire::transport::Message;

// Small limits, so that mutated lengths fall on both sides of them.
Limits small_limits() {
  Limits limits;
  limits.max_header_bytes = 100'000;
  limits.max_buffers = 300;
  limits.max_buffer_bytes = 100'000;
  limits.max_message_bytes = 250'000;
  return limits;
}

constexpr int kStripes = 2;
// Content of the shares that are sent on the stripes.
constexpr char kShare = 's';

struct Outcome {
  std::string text;
  absl::StatusCode code = absl::StatusCode::kOk;
  bool between_frames = true;

  bool operator==(const Outcome&) const = default;
};

// Reads a stream as the comment in transport/tcp/wire/frame.h specifies, without code of the parser. It reads
// only whole frames, so it needs no states.
class Reference {
 public:
  Reference(const char* data, std::size_t size, const Limits& limits, int stripes)
      : data_(data), remaining_(size), limits_(limits), stripes_(stripes) {}

  Outcome read() {
    while (remaining_ > 0 && read_frame()) {
    }
    return std::move(outcome_);
  }

 private:
  static constexpr std::size_t kPrefix = 24;

  uint64_t at(std::size_t offset, int size) const {
    return gradwire::fuzzing::number_at(data_ + offset, size);
  }
  bool malformed() {
    outcome_.code = absl::StatusCode::kInvalidArgument;
    return false;
  }
  bool incomplete() {
    outcome_.between_frames = false;
    return false;
  }

  // Returns false at the end of the stream, or after an error.
  bool read_frame() {
    const std::string start("GWf1\2", 5);
    if (start.compare(0, std::min(remaining_, start.size()), data_, std::min(remaining_, start.size())) != 0)
      return malformed();
    if (remaining_ < kPrefix) return incomplete();
    const uint64_t kind = at(5, 1), stripes = at(6, 1), header = at(8, 8), count = at(16, 4);
    if (kind > 1 || stripes > static_cast<uint64_t>(stripes_) || at(7, 1) != 0 || at(20, 4) != 0)
      return malformed();
    if (kind == 1 && (stripes > 0 || count > 0 || header > 64)) return malformed();
    if (header > limits_.max_header_bytes || count > limits_.max_buffers) return malformed();
    if (remaining_ < kPrefix + 8 * count) return incomplete();

    struct Part {
      uint64_t in_stream = 0;
      uint64_t on_stripes = 0;
    };
    std::vector<Part> parts;
    uint64_t total = header;
    uint64_t stream_bytes = header;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t field = at(kPrefix + 8 * i, 8);
      const bool striped = field >= uint64_t{1} << 63;
      const uint64_t size = striped ? field - (uint64_t{1} << 63) : field;
      if (striped && (stripes == 0 || size < 65536)) return malformed();
      if (size > limits_.max_buffer_bytes) return malformed();
      total += size;
      Part part{size, 0};
      if (striped) {
        const uint64_t each = (size + stripes) / (stripes + 1);
        part.in_stream = std::min(size, (each + 4095) / 4096 * 4096);
        part.on_stripes = size - part.in_stream;
      }
      stream_bytes += part.in_stream;
      parts.push_back(part);
    }
    if (total > limits_.max_message_bytes) return malformed();
    if (remaining_ - kPrefix - 8 * count < stream_bytes) return incomplete();

    skip(kPrefix + 8 * count);
    outcome_.text += text(header) + "|";
    for (const Part& part : parts) {
      outcome_.text += text(part.in_stream) + std::string(part.on_stripes, kShare) + "/";
    }
    return true;
  }

  void skip(std::size_t size) {
    data_ += size;
    remaining_ -= size;
  }
  std::string text(std::size_t size) {
    const std::string text(data_, size);
    skip(size);
    return text;
  }

  const char* data_;
  std::size_t remaining_;
  const Limits& limits_;
  const int stripes_;
  Outcome outcome_;
};

void record(const Message& message, Outcome& outcome) {
  outcome.text += message.header + "|";
  for (const Buffer& buffer : message.buffers) {
    require(reinterpret_cast<uintptr_t>(buffer.data()) % 64 == 0, "a buffer is not aligned");
    if (buffer.size() > 0) outcome.text.append(static_cast<const char*>(buffer.data()), buffer.size());
    outcome.text += "/";
  }
}

// Fills the shares as if they had arrived on the stripes.
void fill_shares(FrameParser& parser, const Limits& limits) {
  for (const FrameParser::ShareMemory& place : parser.take_stripe_places()) {
    require(place.stripe >= 1 && place.stripe <= kStripes, "a share on an unknown stripe");
    require(place.size > 0 && place.size <= limits.max_buffer_bytes, "a share of a wrong size");
    std::memset(place.data, kShare, place.size);
  }
}

// Reads the stream as a connection does between frames: from one piece of memory, at most `step` bytes at a
// time.
Outcome parse_pieces(const char* data, std::size_t size, std::size_t step, BufferPool& pool) {
  const Limits limits = small_limits();
  FrameParser parser(limits, pool);
  parser.set_stripes(kStripes);
  Outcome outcome;
  for (std::size_t offset = 0; offset < size; offset += step) {
    absl::Span<const char> piece(data + offset, std::min(step, size - offset));
    while (!piece.empty()) {
      absl::Status status = parser.consume(piece);
      if (!status.ok()) {
        outcome.code = status.code();
        return outcome;
      }
      fill_shares(parser, limits);
      if (parser.complete()) record(parser.take(), outcome);
    }
  }
  outcome.between_frames = parser.between_frames();
  return outcome;
}

// Reads the stream as a connection does within a frame: into up to `max_places` pieces of memory at once, at
// most `step` bytes at a time.
Outcome parse(const char* data, std::size_t size, std::size_t step, int max_places, BufferPool& pool) {
  const Limits limits = small_limits();
  FrameParser parser(limits, pool);
  parser.set_stripes(kStripes);
  Outcome outcome;
  std::size_t offset = 0;
  while (offset < size) {
    iovec places[16];
    auto count = parser.places(places, max_places);
    require(count.ok() && *count >= 1 && *count <= max_places, "no memory for bytes");
    std::size_t taken = 0;
    std::size_t chunk = std::min(step, size - offset);
    for (int i = 0; i < *count && taken < chunk; ++i) {
      require(places[i].iov_len > 0 && places[i].iov_len <= limits.max_message_bytes,
              "memory of a wrong size");
      std::size_t part = std::min(chunk - taken, places[i].iov_len);
      std::memcpy(places[i].iov_base, data + offset + taken, part);
      taken += part;
    }
    offset += taken;
    absl::Status status = parser.advance(taken);
    if (!status.ok()) {
      outcome.code = status.code();
      require(outcome.code == absl::StatusCode::kInvalidArgument, "an error that is not InvalidArgument");
      return outcome;
    }
    fill_shares(parser, limits);
    if (parser.complete()) record(parser.take(), outcome);
  }
  outcome.between_frames = parser.between_frames();
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, std::size_t size) {
  static BufferPool& pool = *new BufferPool();
  const char* data = reinterpret_cast<const char*>(bytes);
  const Limits limits = small_limits();
  const Outcome whole = parse(data, size, size, 16, pool);
  require(whole == Reference(data, size, limits, kStripes).read(),
          "the result differs from the description of the format");
  for (std::size_t step : {std::size_t{1}, std::size_t{7}, std::size_t{1'000}, std::size_t{60'000}}) {
    Outcome pieces = parse(data, size, step, step == 7 ? 2 : 16, pool);
    require(pieces == whole, "the pieces change the outcome");
    require(parse_pieces(data, size, step, pool) == whole,
            "reading from one piece of memory changes the outcome");
  }
  return 0;
}
