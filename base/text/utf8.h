#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace gradwire {

// One character at the start of a text.
struct Utf8Character {
  std::size_t size = 1;  // In bytes.
  char32_t code = 0;
  // Whether the bytes are valid UTF-8. If not, `size` is 1.
  bool valid = false;
};

// Reads the first character of a text, which must not be empty. Overlong forms, surrogates and codes beyond
// Unicode are not valid.
Utf8Character first_character(absl::string_view text);

}  // namespace gradwire
