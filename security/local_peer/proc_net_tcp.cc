#include "gradwire/security/local_peer/proc_net_tcp.h"

#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace gradwire::security {
namespace {

// The columns that are used, and the number that a line has at least.
constexpr std::size_t kSource = 1;
constexpr std::size_t kDestination = 2;
constexpr std::size_t kState = 3;
constexpr std::size_t kUser = 7;
constexpr std::size_t kInode = 9;

// The digits are checked here, because SimpleHexAtoi() accepts signs, blanks and "0x".
bool parse_hex(absl::string_view text, std::size_t digits, uint32_t& value) {
  if (text.size() != digits) return false;
  value = 0;
  for (const char c : text) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return false;
    value = value << 4 | static_cast<uint32_t>(digit);
  }
  return true;
}

// An end is "0100007F:1F90": the address as 32-bit words in the byte order of the machine, and the port.
bool parse_end(absl::string_view text, TcpEnd& end) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  uint32_t port;
  if (parts.size() != 2 || !parse_hex(parts[1], 4, port)) return false;
  const std::size_t words = parts[0].size() / 8;
  if (parts[0].size() != words * 8 || (words != 1 && words != 4)) return false;
  uint8_t bytes[16];
  for (std::size_t i = 0; i < words; ++i) {
    uint32_t word;
    if (!parse_hex(parts[0].substr(8 * i, 8), 8, word)) return false;
    std::memcpy(bytes + 4 * i, &word, sizeof(word));
  }
  if (words == 1) {
    end = tcp_end_v4(bytes, static_cast<uint16_t>(port));
  } else {
    std::memcpy(end.address.data(), bytes, sizeof(bytes));
    end.port = static_cast<uint16_t>(port);
  }
  return true;
}

}  // namespace

std::optional<ProcNetTcpLine> parse_proc_net_tcp_line(absl::string_view line) {
  const std::vector<absl::string_view> columns = absl::StrSplit(line, ' ', absl::SkipEmpty());
  ProcNetTcpLine parsed;
  uint32_t state;
  if (columns.size() <= kInode || !parse_end(columns[kSource], parsed.source) ||
      !parse_end(columns[kDestination], parsed.destination) || !parse_hex(columns[kState], 2, state) ||
      !absl::SimpleAtoi(columns[kUser], &parsed.socket.user) ||
      !absl::SimpleAtoi(columns[kInode], &parsed.socket.inode)) {
    return std::nullopt;
  }
  parsed.socket.state = static_cast<uint8_t>(state);
  return parsed;
}

}  // namespace gradwire::security
