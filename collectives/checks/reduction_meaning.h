#pragma once

#include <c10/core/ScalarType.h>

#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {

// Why the reduction has no meaning for numbers of this dtype, whatever the backend: a text for messages. nullptr where it
// has one.
const char* why_no_meaning(const Reduction& op, c10::ScalarType dtype);

}  // namespace gradwire::collectives
