#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace gradwire::rpc {

// The size over which messages are watched (TransferWatch), 0 for none: `option`, and if that is 0 the value
// of GRADWIRE_LOG_TRANSFERS_OVER, which `variable` has (nullptr or empty: not set). InvalidArgument if this
// value is needed and is not a number of bytes.
absl::StatusOr<uint64_t> transfers_over(uint64_t option, const char* variable);

}  // namespace gradwire::rpc
