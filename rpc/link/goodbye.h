#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradwire::rpc {

// An envelope with a Goodbye, serialised (proto/rpc.proto).
std::string goodbye(const absl::Status& reason);

// What `by` says to a worker that it has lost, and that may live all the same: Aborted.
absl::Status declared_dead(absl::string_view worker, absl::string_view by);

}  // namespace gradwire::rpc
