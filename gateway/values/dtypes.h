#pragma once

#include <cstdint>

#include "gradwire/proto/gateway.pb.h"

namespace gradwire::gateway {

// The libtorch number of a dtype; -1 if it is unknown. The size of an element in bytes; 0 if it is unknown.
int torch_number(v1::DType dtype);
int64_t item_size(v1::DType dtype);
// DTYPE_UNSPECIFIED for a number that clients do not know.
v1::DType dtype_of(int torch_number);

}  // namespace gradwire::gateway
