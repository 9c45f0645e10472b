#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "gradwire/collectives/flight/operation.h"
#include "gradwire/collectives/group/operations.h"

namespace gradwire::collectives {

// "all_reduce Float[4, 4] sum": what all ranks must have called alike.
std::string describe(const OperationRecord& record);

// Compares what the ranks are about to do by an all_gather of small tensors on `device`. InvalidArgument, on
// all ranks, that says which rank differs from rank 0, and both calls.
absl::Status check_consistency(RunContext& run, const OperationRecord& record, uint64_t sequence,
                               c10::Device device);

}  // namespace gradwire::collectives
