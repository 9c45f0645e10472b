#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradwire::rpc {

// Returns a serialised envelope with a Goodbye for `reason` (proto/rpc.proto).
std::string goodbye(const absl::Status& reason);

// The reason of the Goodbye that `by` sends to a worker that it regards as dead, although that worker may be
// alive. Code: Aborted.
absl::Status declared_dead(absl::string_view worker, absl::string_view by);

}  // namespace gradwire::rpc
