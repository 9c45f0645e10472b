#pragma once

#include <c10/core/ScalarType.h>

#include "gradwire/collectives/cpu/bytes/span.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives::cpu {

// Returns the Reducer that combines elements of `type` by `op`; for kAvg it is the sum. It lives until the
// process ends. Returns nullptr if the operation is not supported for the type.
const Reducer* reducer_of(ReduceOp op, c10::ScalarType type);

}  // namespace gradwire::collectives::cpu
