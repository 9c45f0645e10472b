#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "gradwire/collectives/flight/operation.h"
#include "gradwire/collectives/group/operations.h"

namespace gradwire::collectives {

// Describes the parts of a call that must be equal on all ranks, for example "all_reduce Float[4, 4] sum".
std::string describe(const OperationRecord& record);

// Compares the ranks' next calls, by an all_gather of small tensors on `device`. Errors: InvalidArgument, on
// all ranks, if the calls differ; the message names the rank that differs from rank 0, and both calls.
absl::Status check_consistency(RunContext& run, const OperationRecord& record, uint64_t sequence,
                               c10::Device device);

}  // namespace gradwire::collectives
