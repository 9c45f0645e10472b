#pragma once

#include <vector>

#include "absl/status/status.h"
#include "gradwire/collectives/checks/argument_checks.h"
#include "gradwire/collectives/coalesced_call.h"
#include "gradwire/collectives/flight/operation.h"
#include "gradwire/collectives/operations/operations.h"

// The parts of ProcessGroup::coalesced, in the order in which it uses them.
namespace gradwire::collectives {

// The description of these calls, with the number of elements of their outputs. If all are of one kind, it
// names that kind.
OperationRecord record_of_calls(const std::vector<CoalescedCall>& calls);

// Checks the calls as the collectives themselves check their arguments, and that all tensors are on one
// device. Replaces each root, a rank of the world, by the rank of the group. Errors: InvalidArgument, which
// names the call by its place.
absl::Status check_calls(const ArgumentChecks& checks, std::vector<CoalescedCall>& calls);

// Runs the calls, which have been checked, together. In the memory of the host, small tensors of calls that
// can be joined travel in one buffer (FlatBatch); the other calls are given to GroupBackend::together.
absl::Status run_calls(RunContext& run, std::vector<CoalescedCall> calls);

}  // namespace gradwire::collectives
