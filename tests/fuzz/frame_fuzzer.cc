#include "tests/fuzz/frame_fuzzer.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "transport/tcp/frame.h"

namespace {

using gradwire::Limits;
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

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "frame fuzzer: %s\n", what);
  std::abort();
}

struct Outcome {
  std::string text;
  absl::StatusCode code = absl::StatusCode::kOk;
  bool between_frames = true;
};

void record(const Message& message, const Limits& limits, Outcome& outcome) {
  require(gradwire::transport::check_frame_limits(message, limits).ok(),
          "a message over the limits came through");
  outcome.text += message.header + "|";
  for (const Buffer& buffer : message.buffers) {
    require(reinterpret_cast<uintptr_t>(buffer.data()) % 64 == 0, "a buffer is not aligned");
    if (buffer.size() > 0) outcome.text.append(static_cast<const char*>(buffer.data()), buffer.size());
    outcome.text += "/";
  }
}

// As a connection does: into `max_places` places at once, at most `step` bytes at a time.
Outcome parse(const char* data, std::size_t size, std::size_t step, int max_places, BufferPool& pool) {
  const Limits limits = small_limits();
  FrameParser parser(limits, pool);
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
  for (std::size_t step : {std::size_t{1}, std::size_t{7}, std::size_t{1'000}}) {
    Outcome pieces = parse(data, size, step, step == 7 ? 2 : 16, pool);
    require(pieces.text == whole.text && pieces.code == whole.code &&
                pieces.between_frames == whole.between_frames,
            "the pieces change the outcome");
  }
  return 0;
}
