#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradwire {

// The maximum length of the names of workers and groups. Names consist of the characters A-Z a-z 0-9 _ . : -
// They are used unescaped in messages, in logs and in keys of the store.
inline constexpr std::size_t kMaxNameLength = 128;

// Returns InvalidArgument if `name` is not a valid name. The message begins with `what`, the kind of name
// (for example "worker name"). It shows only the beginning of `name`, escaped.
absl::Status check_name(absl::string_view what, absl::string_view name,
                        std::size_t max_length = kMaxNameLength);

}  // namespace gradwire
