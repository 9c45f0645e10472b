// Reads the input as a message between ranks (collectives/cpu/world_p2p/p2p_wire.h): a byte with the
// number of buffers, for each buffer a byte with its size, and the header.

#include <map>
#include <string>

#include "gradwire/collectives/cpu/world_p2p/p2p_wire.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace {

using gradwire::collectives::cpu::Frame;
using gradwire::fuzzing::number_at;
using gradwire::fuzzing::require;
using gradwire::transport::Message;

// The fields that each kind may use, from the comments of FrameKind: c = a code, m = channel and tag, t = the
// tag, s = a size, i = an id, p = a payload, h = a token behind the frame.
const std::map<int, std::string>& fields() {
  static const auto& all = *new std::map<int, std::string>{
      {1, "tsh"}, {2, ""},    {3, "msp"}, {4, "msi"}, {5, "i"},
      {6, "csi"}, {7, "sip"}, {8, "ci"},  {9, "s"},   {10, ""},
  };
  return all;
}

bool is_frame(const Message& message) {
  const std::string& header = message.header;
  if (header.size() < 40 || header.compare(0, 3, "Gm\x01") != 0) return false;
  const auto found = fields().find(static_cast<int>(number_at(header.data() + 3, 1)));
  if (found == fields().end()) return false;
  const auto uses = [&found](char field) { return found->second.find(field) != std::string::npos; };
  const uint64_t code = number_at(header.data() + 4, 4);
  const uint64_t channel = number_at(header.data() + 8, 8);
  const uint64_t tag = number_at(header.data() + 16, 8);
  const uint64_t size = number_at(header.data() + 24, 8);
  const uint64_t id = number_at(header.data() + 32, 8);
  if (uses('c') ? code < 1 || code > 16 : code != 0) return false;
  if (!uses('m') && channel != 0) return false;
  if (!uses('m') && !uses('t') && tag != 0) return false;
  if (!uses('s') && size != 0) return false;
  if (uses('i') != (id != 0)) return false;
  const uint64_t rest = header.size() - 40;
  if (uses('h')) return message.buffers.empty() && rest == 64;
  if (!uses('p')) return message.buffers.empty() && rest == 0;
  if (message.buffers.empty()) return rest == size;
  return message.buffers.size() == 1 && rest == 0 && message.buffers[0].size() == size;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  static char memory[256];
  gradwire::fuzzing::Input input(data, size);
  Message message;
  for (uint64_t count = input.number(1) % 4; count > 1; --count)
    message.buffers.emplace_back(memory, input.number(1), nullptr);
  message.header = input.rest();
  const absl::StatusOr<Frame> frame = gradwire::collectives::cpu::parse_frame(message);
  require(frame.ok() == is_frame(message), "a frame is accepted or refused wrongly");
  if (!frame.ok()) {
    require(absl::IsInvalidArgument(frame.status()), "an error that is not InvalidArgument");
    return 0;
  }
  require(encode_frame(*frame) == message.header.substr(0, 40), "a frame does not survive encoding");
  return 0;
}
