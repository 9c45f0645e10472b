#include "gradwire/base/name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace gradwire {
namespace {

constexpr std::size_t kShown = 64;

bool is_name_character(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == ':' || c == '-';
}

}  // namespace

absl::Status check_name(absl::string_view what, absl::string_view name, std::size_t max_length) {
  const bool fits = !name.empty() && name.size() <= max_length;
  if (fits && std::all_of(name.begin(), name.end(), is_name_character)) return absl::OkStatus();
  const std::string shown = absl::CHexEscape(name.substr(0, kShown));
  const std::string length =
      name.size() > kShown ? absl::StrCat("... of ", name.size(), " bytes") : std::string();
  return absl::InvalidArgumentError(absl::StrCat("bad ", what, ": got \"", shown, "\"", length,
                                                 ", expected 1 to ", max_length,
                                                 " characters of A-Z a-z 0-9 _ . : -; choose another name"));
}

}  // namespace gradwire
