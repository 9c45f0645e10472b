#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gradwire::store {

// Quotes a key for a message. Keys are bytes and may be long, so only an escaped beginning is shown.
inline std::string quoted_key(absl::string_view key) {
  constexpr std::size_t kShown = 128;
  return absl::StrCat("\"", absl::CHexEscape(key.substr(0, kShown)), key.size() > kShown ? "...\"" : "\"");
}

}  // namespace gradwire::store
