#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives::nccl {

// NCCL's element types and operations under its own numbers, without its header. What is only moved travels
// as bytes.
enum class Type : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kHalf = 6,
  kFloat = 7,
  kDouble = 8,
  kBfloat16 = 9
};
enum class Op : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAvg = 4 };

// How NCCL does a reduction of tensors.
struct Plan {
  Type type = Type::kFloat;
  Op op = Op::kSum;
  // NCCL's elements in one of the tensor's: 2 for complex numbers.
  int64_t per_element = 1;
  // NCCL has no 16 bit integers: reduced as int32 and cut off again, which is the same modulo 2^16.
  bool widened = false;
};

// InvalidArgument for bitwise operations, dtypes that NCCL does not know, and what has no meaning for a
// dtype. Premultiplication is not its business.
absl::StatusOr<Plan> plan(at::ScalarType dtype, ReduceOp op);

// Whether rank `self` can have messages with `peer`; -1: any. InvalidArgument.
absl::Status check_peer(int peer, int self);

}  // namespace gradwire::collectives::nccl
