#include "gradwire/security/tls/first_bytes.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace gradwire::security {
namespace {

// The record of a refusal: "GWa1", the kind, a zero byte, the length of the text in two bytes, the text.
constexpr absl::string_view kMagic = "GWa1";
constexpr size_t kHead = 8;
constexpr char kRefusal = 5;
constexpr size_t kMaxRefusal = 512;
constexpr size_t kShownBytes = 16;

// The types of the records with which a handshake may begin, and the first byte of all versions of TLS.
constexpr char kAlert = 0x15;
constexpr char kHandshake = 0x16;
constexpr char kMajorVersion = 0x03;

absl::Status not_tls(absl::string_view bytes, const std::string& peer) {
  return absl::UnauthenticatedError(
      absl::StrCat("TLS with ", peer, " failed: the peer does not speak TLS: its first bytes are \"",
                   absl::CHexEscape(bytes.substr(0, kShownBytes)),
                   "\"; give both ends certificates, or neither, and check the address"));
}

}  // namespace

std::optional<absl::Status> judge_first_bytes(absl::string_view bytes, bool ended, const std::string& peer) {
  if (bytes.empty()) return std::nullopt;
  if (bytes[0] == kHandshake || bytes[0] == kAlert) {
    if (bytes.size() > 1) return bytes[1] == kMajorVersion ? absl::OkStatus() : not_tls(bytes, peer);
    return ended ? std::make_optional(not_tls(bytes, peer)) : std::nullopt;
  }

  // The head of a refusal, as far as it is there.
  if (bytes.substr(0, kMagic.size()) != kMagic.substr(0, bytes.size())) return not_tls(bytes, peer);
  if (bytes.size() < kHead) return ended ? std::make_optional(not_tls(bytes, peer)) : std::nullopt;
  const size_t size =
      static_cast<unsigned char>(bytes[6]) + 256 * static_cast<size_t>(static_cast<unsigned char>(bytes[7]));
  if (bytes[4] != kRefusal || bytes[5] != 0 || size > kMaxRefusal) return not_tls(bytes, peer);

  if (bytes.size() < kHead + size && !ended) return std::nullopt;
  return absl::UnauthenticatedError(absl::StrCat(
      "TLS with ", peer,
      " failed: the peer refused the connection: ", absl::CHexEscape(bytes.substr(kHead, size))));
}

}  // namespace gradwire::security
