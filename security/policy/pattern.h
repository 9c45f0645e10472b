#pragma once

#include "absl/strings/string_view.h"

namespace gradwire::security {

// Whether `name` fits the pattern, in which '*' stands for any number of any characters. Takes at most as
// many steps as the product of both lengths.
bool matches(absl::string_view pattern, absl::string_view name);

}  // namespace gradwire::security
