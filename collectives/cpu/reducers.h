#pragma once

#include <c10/core/ScalarType.h>

#include "gradwire/collectives/cpu/span.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives::cpu {

// How elements of this type are combined by `op` (of kAvg: the sum). Kept for ever. nullptr where the
// operation has no meaning for the type.
const Reducer* reducer_of(ReduceOp op, c10::ScalarType type);

}  // namespace gradwire::collectives::cpu
