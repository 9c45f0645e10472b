#include "tests/fuzz/frame_fuzzer.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tests/fuzz/fuzzing.h"
#include "transport/tcp/frame.h"

namespace {

using gradwire::Limits;
using gradwire::fuzzing::require;
using gradwire::transport::Buffer;
using gradwire::transport::BufferPool;
using gradwire::transport::FrameParser;
using gradwire::transport::Message;

// Small, so that mutated lengths fall on both sides of them.
Limits small_limits() {
  Limits limits;
  limits.max_header_bytes = 100'000;
  limits.max_buffers = 300;
  limits.max_buffer_bytes = 100'000;
  limits.max_message_bytes = 250'000;
  return limits;
}

struct Outcome {
  std::string text;
  absl::StatusCode code = absl::StatusCode::kOk;
  bool between_frames = true;

  bool operator==(const Outcome&) const = default;
};

// By itself, not by the check that the parser uses.
void require_within_limits(const Message& message, const Limits& limits) {
  require(message.header.size() <= limits.max_header_bytes, "a header over the limit came through");
  require(message.buffers.size() <= limits.max_buffers, "too many buffers came through");
  std::size_t total = message.header.size();
  for (const Buffer& buffer : message.buffers) {
    require(buffer.size() <= limits.max_buffer_bytes, "a buffer over the limit came through");
    total += buffer.size();
  }
  require(total <= limits.max_message_bytes, "a message over the limit came through");
}

void record(const Message& message, const Limits& limits, Outcome& outcome) {
  require_within_limits(message, limits);
  outcome.text += message.header + "|";
  for (const Buffer& buffer : message.buffers) {
    require(reinterpret_cast<uintptr_t>(buffer.data()) % 64 == 0, "a buffer is not aligned");
    if (buffer.size() > 0) outcome.text.append(static_cast<const char*>(buffer.data()), buffer.size());
    outcome.text += "/";
  }
}

// As if the stripes' bytes had come.
void fill_shares(FrameParser& parser, const Limits& limits) {
  for (const FrameParser::Place& place : parser.take_stripe_places()) {
    require(place.stripe >= 1 && place.stripe <= 2, "a share on no stripe");
    require(place.size > 0 && place.size <= limits.max_buffer_bytes, "a share of a wrong size");
    std::memset(place.data, 's', place.size);
  }
}

// As a connection does between frames: from one piece of memory, at most `step` bytes at a time.
Outcome parse_pieces(const char* data, std::size_t size, std::size_t step, BufferPool& pool) {
  const Limits limits = small_limits();
  FrameParser parser(limits, pool);
  parser.set_stripes(2);
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
      if (parser.complete()) record(parser.take(), limits, outcome);
    }
  }
  outcome.between_frames = parser.between_frames();
  return outcome;
}

// As a connection does within a frame: into `max_places` places at once, at most `step` bytes at a time.
Outcome parse(const char* data, std::size_t size, std::size_t step, int max_places, BufferPool& pool) {
  const Limits limits = small_limits();
  FrameParser parser(limits, pool);
  parser.set_stripes(2);
  Outcome outcome;
  std::size_t offset = 0;
  while (offset < size) {
    iovec places[16];
    auto count = parser.places(places, max_places);
    require(count.ok() && *count >= 1 && *count <= max_places, "no place for bytes");
    std::size_t taken = 0;
    std::size_t now = std::min(step, size - offset);
    for (int i = 0; i < *count && taken < now; ++i) {
      require(places[i].iov_len > 0 && places[i].iov_len <= limits.max_message_bytes,
              "a place of a wrong size");
      std::size_t part = std::min(now - taken, places[i].iov_len);
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
    if (parser.complete()) record(parser.take(), limits, outcome);
  }
  outcome.between_frames = parser.between_frames();
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, std::size_t size) {
  static BufferPool& pool = *new BufferPool();
  const char* data = reinterpret_cast<const char*>(bytes);
  Outcome whole = parse(data, size, size, 16, pool);
  for (std::size_t step : {std::size_t{1}, std::size_t{7}, std::size_t{1'000}, std::size_t{60'000}}) {
    Outcome pieces = parse(data, size, step, step == 7 ? 2 : 16, pool);
    require(pieces == whole, "the pieces change the outcome");
    require(parse_pieces(data, size, step, pool) == whole, "another way of reading changes the outcome");
  }
  return 0;
}
