#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace gradwire::metrics {

// The length of the UTF-8 sequence at the beginning of `text`; 0 if it is malformed. Overlong forms,
// surrogates and values beyond U+10FFFF are malformed. REQUIRES: `text` is not empty.
std::size_t utf8_length(absl::string_view text);

}  // namespace gradwire::metrics
