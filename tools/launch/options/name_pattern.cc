#include "gradwire/tools/launch/options/name_pattern.h"

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gradwire::tools {
namespace {

constexpr absl::string_view kFields = "{rank}, {local_rank}, {role}, {role_rank}";

// The text of the field between two braces, or nullopt if there is no such field.
std::optional<std::string> value_of(absl::string_view field, const WorkerPlace& place) {
  if (field == "rank") return absl::StrCat(place.rank);
  if (field == "local_rank") return absl::StrCat(place.local_rank);
  if (field == "role") return place.role;
  if (field == "role_rank") return absl::StrCat(place.role_rank);
  return std::nullopt;
}

// Fills in as many fields as possible. Sets `rest` to the text from the first malformed place on.
std::string expand(absl::string_view pattern, const WorkerPlace& place, absl::string_view& rest) {
  std::string text;
  rest = pattern;
  while (!rest.empty()) {
    const size_t plain = rest.find_first_of("{}");
    absl::StrAppend(&text, rest.substr(0, plain));
    if (plain == absl::string_view::npos) {
      rest = {};
      break;
    }
    rest.remove_prefix(plain);
    const size_t end = rest.find('}');
    if (rest[0] == '}' || end == absl::string_view::npos) break;
    const std::optional<std::string> value = value_of(rest.substr(1, end - 1), place);
    if (!value) break;
    absl::StrAppend(&text, *value);
    rest.remove_prefix(end + 1);
  }
  return text;
}

}  // namespace

absl::Status check_name_pattern(absl::string_view pattern) {
  absl::string_view rest;
  expand(pattern, WorkerPlace(), rest);
  if (rest.empty()) return absl::OkStatus();
  const size_t end = rest.find('}');
  return absl::InvalidArgumentError(absl::StrCat("\"", rest.substr(0, end == rest.npos ? end : end + 1),
                                                 "\" is not one of the fields ", kFields));
}

bool has_rank_field(absl::string_view pattern) {
  return absl::StrContains(pattern, "{rank}") || absl::StrContains(pattern, "{role_rank}");
}

std::string expand_name_pattern(absl::string_view pattern, const WorkerPlace& place) {
  absl::string_view rest;
  return expand(pattern, place, rest);
}

}  // namespace gradwire::tools
