#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradwire::transport {

// Why a connection could not be made, where the other host itself said so: it is up, and nobody listens at
// the address.
absl::Status refused_error(absl::string_view message);
bool is_refused(const absl::Status& status);

}  // namespace gradwire::transport
