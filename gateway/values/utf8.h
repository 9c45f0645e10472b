#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace gradwire::gateway {

// Whether the text is UTF-8, as the strings of a Protobuf message must be.
bool is_utf8(absl::string_view text);
// Returns the text with a question mark for each byte that does not belong to UTF-8.
std::string printable(absl::string_view text);

}  // namespace gradwire::gateway
