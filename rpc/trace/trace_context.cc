#include "gradwire/rpc/trace/trace_context.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gradwire::rpc {
namespace {

// Members of a tracestate that are longer are dropped first.
constexpr std::size_t kLongMember = 128;
constexpr std::size_t kMostMembers = 32;
constexpr std::size_t kMostKey = 256;
constexpr std::size_t kMostValue = 256;
// The length of a traceparent of version 00.
constexpr std::size_t kParentSize = 55;

// Takes so many hexadecimal digits, which must be lower case, from the front. The standard allows no others.
std::optional<uint64_t> take_hex(absl::string_view& text, std::size_t digits) {
  if (text.size() < digits) return std::nullopt;
  uint64_t value = 0;
  for (const char c : text.substr(0, digits)) {
    if (!absl::ascii_isdigit(c) && (c < 'a' || c > 'f')) return std::nullopt;
    value = value << 4 | static_cast<uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  text.remove_prefix(digits);
  return value;
}

bool is_key(absl::string_view key) {
  if (key.empty() || key.size() > kMostKey) return false;
  const auto is_first = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); };
  const auto is_other = [&](char c) {
    return is_first(c) || c == '_' || c == '-' || c == '*' || c == '/' || c == '@';
  };
  return is_first(key[0]) && std::all_of(key.begin(), key.end(), is_other) &&
         std::count(key.begin(), key.end(), '@') <= 1;
}

bool is_value(absl::string_view value) {
  return !value.empty() && value.size() <= kMostValue && value.back() != ' ' &&
         std::all_of(value.begin(), value.end(),
                     [](char c) { return absl::ascii_isprint(c) && c != ',' && c != '='; });
}

std::size_t joined_size(const std::vector<absl::string_view>& members) {
  std::size_t size = members.empty() ? 0 : members.size() - 1;
  for (const absl::string_view member : members) size += member.size();
  return size;
}

// Empty if it is malformed.
std::string parse_state(absl::string_view text) {
  std::vector<absl::string_view> members;
  std::vector<absl::string_view> keys;
  for (absl::string_view member : absl::StrSplit(text, ',')) {
    member = absl::StripAsciiWhitespace(member);
    if (member.empty()) continue;
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(member, absl::MaxSplits('=', 1));
    if (!is_key(parts.first) || !is_value(parts.second)) return "";
    if (members.size() == kMostMembers || std::count(keys.begin(), keys.end(), parts.first) > 0) return "";
    keys.push_back(parts.first);
    members.push_back(member);
  }
  // The newest members are in front.
  for (std::size_t i = members.size(); i-- > 0 && joined_size(members) > TraceContext::kMaxState;) {
    if (members[i].size() > kLongMember) members.erase(members.begin() + static_cast<std::ptrdiff_t>(i));
  }
  while (joined_size(members) > TraceContext::kMaxState) members.pop_back();
  return absl::StrJoin(members, ",");
}

}  // namespace

absl::StatusOr<TraceContext> TraceContext::parse(absl::string_view traceparent,
                                                 absl::string_view tracestate) {
  const absl::Status malformed = absl::InvalidArgumentError(
      "malformed traceparent: expected VERSION-TRACE_ID-SPAN_ID-FLAGS, as W3C Trace Context defines it");
  absl::string_view rest = traceparent;
  TraceContext context;
  const auto dash = [&] { return absl::ConsumePrefix(&rest, "-"); };
  const std::optional<uint64_t> version = take_hex(rest, 2);
  if (!version || *version == 0xff || !dash()) return malformed;
  const std::optional<uint64_t> high = take_hex(rest, 16);
  const std::optional<uint64_t> low = take_hex(rest, 16);
  if (!high || !low || !dash()) return malformed;
  const std::optional<uint64_t> span = take_hex(rest, 16);
  if (!span || !dash()) return malformed;
  const std::optional<uint64_t> flags = take_hex(rest, 2);
  if (!flags || (*high == 0 && *low == 0) || *span == 0) return malformed;
  // Later versions may add fields behind these.
  if (traceparent.size() != kParentSize && (*version == 0 || rest[0] != '-')) return malformed;
  context.trace_high = *high;
  context.trace_low = *low;
  context.span = *span;
  // Other bits have no meaning in version 00, which is the one that traceparent() writes.
  context.flags = static_cast<uint8_t>(*flags & 1);
  context.state = parse_state(tracestate);
  return context;
}

std::string TraceContext::traceparent() const {
  return absl::StrCat("00-", trace_id(), "-", absl::Hex(span, absl::kZeroPad16), "-",
                      absl::Hex(flags, absl::kZeroPad2));
}

std::string TraceContext::trace_id() const {
  return absl::StrCat(absl::Hex(trace_high, absl::kZeroPad16), absl::Hex(trace_low, absl::kZeroPad16));
}

TraceContext TraceContext::inside(const CallIdentity& call) const {
  TraceContext context = *this;
  // Both ends compute the same span. The mixing steps are those of SplitMix64, which map different numbers to
  // different spans.
  uint64_t mixed = call.caller ^ call.number * 0x9e3779b97f4a7c15;
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
  mixed ^= mixed >> 31;
  context.span = mixed == 0 ? 1 : mixed;
  return context;
}

}  // namespace gradwire::rpc
