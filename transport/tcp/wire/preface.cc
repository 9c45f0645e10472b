#include "gradwire/transport/tcp/wire/preface.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/random_id.h"
#include "gradwire/transport/tcp/wire/frame.h"
#include "gradwire/transport/tcp/wire/frame_format.h"

namespace gradwire::transport {
namespace {

constexpr absl::string_view kPrefaceMagic = "GWt1";
constexpr int kPrefaceVersion = 2;

int byte_at(absl::string_view bytes, std::size_t index) { return static_cast<unsigned char>(bytes[index]); }

}  // namespace

std::string Preface::encode() const {
  std::string bytes(kBytes, '\0');
  kPrefaceMagic.copy(bytes.data(), kPrefaceMagic.size());
  bytes[4] = kPrefaceVersion;
  bytes[5] = static_cast<char>((kind == Kind::kStripe ? 1 : 0) | static_cast<int>(proof) << 4);
  bytes[6] = static_cast<char>(stripe);
  bytes[7] = static_cast<char>(stripes);
  frame_format::write_integer(bytes.data() + 8, token[0]);
  frame_format::write_integer(bytes.data() + 16, token[1]);
  return bytes;
}

bool Preface::has_magic(absl::string_view bytes) {
  return bytes.substr(0, kPrefaceMagic.size()) == kPrefaceMagic;
}

absl::StatusOr<Preface> Preface::parse(absl::string_view bytes) {
  if (!has_magic(bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot parse its preface: it begins with \"",
                                                   absl::CHexEscape(bytes.substr(0, 4)), "\", expected \"",
                                                   kPrefaceMagic, "\"; it may not be a Gradwire worker"));
  }
  if (byte_at(bytes, 4) != kPrefaceVersion) {
    return absl::InvalidArgumentError(absl::StrCat("cannot parse its preface: got version ",
                                                   byte_at(bytes, 4), ", expected version ", kPrefaceVersion,
                                                   "; run the same release of Gradwire at both ends"));
  }
  Preface preface;
  preface.stripe = byte_at(bytes, 6);
  preface.stripes = byte_at(bytes, 7);
  preface.token = {frame_format::read_integer<uint64_t>(bytes.data() + 8),
                   frame_format::read_integer<uint64_t>(bytes.data() + 16)};
  const int kind = byte_at(bytes, 5) & 0xf;
  const int proof = byte_at(bytes, 5) >> 4;
  if (proof <= static_cast<int>(Proof::kCertificate)) preface.proof = static_cast<Proof>(proof);
  const bool proof_is_known = static_cast<int>(preface.proof) == proof;
  if (proof_is_known && kind == 0 && preface.stripe == 0 && preface.stripes == 0) return preface;
  preface.kind = Kind::kStripe;
  if (proof == 0 && kind == 1 && preface.stripe >= 1 && preface.stripe <= preface.stripes &&
      preface.stripes <= kMaxStripes) {
    return preface;
  }
  return absl::InvalidArgumentError(absl::StrCat("invalid preface: got kind ", kind, ", proof ", proof,
                                                 ", stripe ", preface.stripe, " of ", preface.stripes));
}

Preface::Token random_token() { return {random_id(), random_id()}; }

}  // namespace gradwire::transport
