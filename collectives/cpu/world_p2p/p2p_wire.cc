#include "gradwire/collectives/cpu/world_p2p/p2p_wire.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace gradwire::collectives::cpu {
namespace {

constexpr char kMagic[2] = {'G', 'm'};
constexpr char kVersion = 1;

template <class T>
void put(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

template <class T>
T take(absl::string_view bytes, std::size_t offset) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(static_cast<T>(static_cast<unsigned char>(bytes[offset + i])) << (8 * i));
  return value;
}

absl::Status malformed_frame(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("malformed frame: ", why));
}

// The fields that a kind uses.
struct Uses {
  bool code = false;
  bool channel_and_tag = false;
  bool size = false;
  bool id = false;
  bool payload = false;
};

absl::StatusOr<Uses> uses_of(FrameKind kind) {
  switch (kind) {
    case FrameKind::kHello:
    case FrameKind::kWelcome:
    case FrameKind::kGoodbye:
      return Uses{};
    case FrameKind::kEager:
      return Uses{.channel_and_tag = true, .size = true, .payload = true};
    case FrameKind::kRts:
      return Uses{.channel_and_tag = true, .size = true, .id = true};
    case FrameKind::kCts:
      return Uses{.id = true};
    case FrameKind::kNack:
      return Uses{.code = true, .size = true, .id = true};
    case FrameKind::kData:
      return Uses{.size = true, .id = true, .payload = true};
    case FrameKind::kCancel:
      return Uses{.code = true, .id = true};
    case FrameKind::kCredit:
      return Uses{.size = true};
    case FrameKind::kBegin:
      break;
  }
  return malformed_frame(absl::StrCat("invalid kind ", static_cast<int>(kind)));
}

absl::Status check_fields(const Frame& frame, const Uses& uses) {
  const bool hello = frame.kind == FrameKind::kHello;
  if ((!uses.code && frame.code != 0) || (!uses.channel_and_tag && frame.channel != 0) ||
      (!uses.channel_and_tag && !hello && frame.tag != 0) || (!uses.size && !hello && frame.size != 0) ||
      (!uses.id && frame.id != 0)) {
    return malformed_frame(
        absl::StrCat("an unused field of kind ", static_cast<int>(frame.kind), " is not zero"));
  }
  if (uses.id && frame.id == 0) return malformed_frame("id is 0");
  if (uses.code && !is_error_code(frame.code))
    return malformed_frame(absl::StrCat("invalid code ", frame.code));
  return absl::OkStatus();
}

}  // namespace

std::string encode_frame(const Frame& frame, std::size_t more) {
  std::string out;
  out.reserve(kFrameBytes + more);
  out.append(kMagic, sizeof(kMagic));
  out.push_back(kVersion);
  out.push_back(static_cast<char>(frame.kind));
  put(out, frame.code);
  put(out, frame.channel);
  put(out, static_cast<uint64_t>(frame.tag));
  put(out, frame.size);
  put(out, frame.id);
  return out;
}

// The bytes come from any process that can connect. Everything is checked before it is used: the length, the
// fields, and the size of the payload.
absl::StatusOr<Frame> parse_frame(const transport::Message& message) {
  const absl::string_view bytes = message.header;
  if (bytes.size() < kFrameBytes)
    return malformed_frame(absl::StrCat("got ", bytes.size(), " bytes, expected at least ", kFrameBytes));
  if (bytes[0] != kMagic[0] || bytes[1] != kMagic[1]) return malformed_frame("invalid magic");
  if (bytes[2] != kVersion)
    return malformed_frame(absl::StrCat("unknown version ", static_cast<int>(bytes[2])));
  Frame frame;
  frame.kind = static_cast<FrameKind>(bytes[3]);
  frame.code = take<uint32_t>(bytes, 4);
  frame.channel = take<uint64_t>(bytes, 8);
  frame.tag = static_cast<int64_t>(take<uint64_t>(bytes, 16));
  frame.size = take<uint64_t>(bytes, 24);
  frame.id = take<uint64_t>(bytes, 32);
  const absl::StatusOr<Uses> uses = uses_of(frame.kind);
  if (!uses.ok()) return uses.status();
  if (absl::Status fields = check_fields(frame, *uses); !fields.ok()) return fields;

  // A payload is either behind the frame or the only buffer, never both.
  const std::size_t rest = bytes.size() - kFrameBytes;
  const bool in_buffer = uses->payload && message.buffers.size() == 1 && rest == 0;
  if (!message.buffers.empty() && !in_buffer) return malformed_frame("unexpected buffers");
  uint64_t expected = frame.kind == FrameKind::kHello ? kTokenBytes : 0;
  if (uses->payload) expected = frame.size;
  const uint64_t actual = in_buffer ? message.buffers[0].size() : rest;
  if (actual != expected)
    return malformed_frame(absl::StrCat("payload of ", actual, " bytes, expected ", expected));
  return frame;
}

bool same_secret(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  // The loop does not end at the first difference: its duration would reveal how many bytes of a guess are
  // right.
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return difference == 0;
}

}  // namespace gradwire::collectives::cpu
