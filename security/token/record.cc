#include "gradwire/security/token/record.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace gradwire::security {
namespace {

constexpr absl::string_view kMagic = "GWa1";
constexpr std::size_t kKindAt = 4;
constexpr std::size_t kZeroAt = 5;
constexpr std::size_t kLengthAt = 6;

std::string printable(absl::string_view text) {
  std::string result(text.substr(0, Record::kMaxRefusal));
  for (char& c : result) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return result;
}

std::size_t byte_at(absl::string_view bytes, std::size_t at) { return static_cast<unsigned char>(bytes[at]); }

std::size_t most(Record::Kind kind) {
  return kind == Record::Kind::kRefusal ? Record::kMaxRefusal : Record::kMaxBody;
}

}  // namespace

Record Record::refusal(absl::string_view sentence) { return {Kind::kRefusal, printable(sentence)}; }

std::string Record::sentence() const { return printable(body); }

std::string Record::encode() const {
  std::string bytes(kMagic);
  bytes.push_back(static_cast<char>(kind));
  bytes.push_back('\0');
  bytes.push_back(static_cast<char>(body.size() & 0xff));
  bytes.push_back(static_cast<char>(body.size() >> 8));
  return bytes + body;
}

std::size_t RecordParser::body_bytes() const {
  return byte_at(bytes_, kLengthAt) | byte_at(bytes_, kLengthAt + 1) << 8;
}

std::size_t RecordParser::wanted() const {
  if (bytes_.size() < Record::kHeaderBytes) return Record::kHeaderBytes - bytes_.size();
  return Record::kHeaderBytes + body_bytes() - bytes_.size();
}

// Each byte is checked when it arrives: a peer that speaks another protocol may wait for an answer after less
// than a header.
absl::Status RecordParser::check_header() const {
  const std::size_t magic = std::min(bytes_.size(), kMagic.size());
  if (absl::string_view(bytes_).substr(0, magic) != kMagic.substr(0, magic)) {
    return absl::InvalidArgumentError(absl::StrCat("malformed record of the handshake: it begins with \"",
                                                   absl::CHexEscape(bytes_.substr(0, magic)),
                                                   "\", expected \"", kMagic, "\""));
  }
  if (bytes_.size() <= kKindAt) return absl::OkStatus();
  const std::size_t kind = byte_at(bytes_, kKindAt);
  if (kind < 1 || kind > 5) {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed record of the handshake: its kind is ", kind, ", expected 1 to 5"));
  }
  if (bytes_.size() > kZeroAt && bytes_[kZeroAt] != 0) {
    return absl::InvalidArgumentError(absl::StrCat("malformed record of the handshake: its byte ", kZeroAt,
                                                   " is ", byte_at(bytes_, kZeroAt), ", expected 0"));
  }
  if (bytes_.size() < Record::kHeaderBytes) return absl::OkStatus();
  const std::size_t bound = most(static_cast<Record::Kind>(kind));
  if (body_bytes() > bound) {
    return absl::InvalidArgumentError(absl::StrCat("malformed record of the handshake: its body has ",
                                                   body_bytes(), " bytes, expected at most ", bound));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::size_t> RecordParser::add(absl::string_view bytes) {
  std::size_t taken = 0;
  // Twice at most: the rest of the header, which has the size of the body, and the rest of the body.
  while (taken < bytes.size() && !complete()) {
    const bool in_header = bytes_.size() < Record::kHeaderBytes;
    const absl::string_view next = bytes.substr(taken, wanted());
    bytes_.append(next.data(), next.size());
    taken += next.size();
    if (!in_header) continue;
    if (absl::Status status = check_header(); !status.ok()) return status;
  }
  return taken;
}

Record RecordParser::take() {
  Record record{static_cast<Record::Kind>(byte_at(bytes_, kKindAt)), bytes_.substr(Record::kHeaderBytes)};
  bytes_.clear();
  return record;
}

}  // namespace gradwire::security
