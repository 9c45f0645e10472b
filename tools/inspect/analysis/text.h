#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/text/bytes_text.h"

namespace gradwire::inspect {

// A duration for people: "12.3 s", "450 ms", "3 min 20 s", "no limit".
std::string text_of(absl::Duration duration);
using gradwire::bytes_text;
// The text with other bytes than printable ASCII escaped, so that a terminal shows it and obeys nothing in
// it. UTF-8 is escaped too, because names have none.
std::string printable(absl::string_view text);
// As printable(), in double quotes.
std::string in_quotes(absl::string_view text);

}  // namespace gradwire::inspect
