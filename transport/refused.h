#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradwire::transport {

// The error of a connection that the other host refused: the host is up, but no process listens at the
// address.
absl::Status refused_error(absl::string_view message);
bool is_refused(const absl::Status& status);

}  // namespace gradwire::transport
