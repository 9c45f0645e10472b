#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace gradwire {

// Whether the character can end a line, move a terminal's cursor, or change the order in which text is shown.
bool is_control(char32_t code);

// Appends `text` to `out` as a JSON string, with its quotes. Control characters are escaped. Each byte that
// is not UTF-8 becomes U+FFFD.
void append_json_text(std::string& out, absl::string_view text);

}  // namespace gradwire
