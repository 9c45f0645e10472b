#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradwire::transport {

// The error of a connection that the other host refused: the host is up, but no process listens at the
// address.
absl::Status refused_error(absl::string_view message);
bool is_refused(const absl::Status& status);

// The error of a connection whose address was not found by the name of its host: nothing was sent there. The
// name may be unknown, or the name service does not answer.
absl::Status unresolved_error(absl::string_view message);
bool is_unresolved(const absl::Status& status);

}  // namespace gradwire::transport
