#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradwire {

// Names of workers and groups are 1 to 128 characters of A-Z a-z 0-9 _ . : -
// They stand in messages, in logs and in keys of the store as they are.
inline constexpr std::size_t kMaxNameLength = 128;

// InvalidArgument where `name` is not such a name. The message begins with `what` the name is of ("worker
// name"), and has no byte of a bad name unescaped and no more than its beginning.
absl::Status check_name(absl::string_view what, absl::string_view name,
                        std::size_t max_length = kMaxNameLength);

}  // namespace gradwire
