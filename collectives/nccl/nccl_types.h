#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives::nccl {

// NCCL's element types and operations, with NCCL's numbers, so that its header is not needed. Operations that
// only move data use bytes.
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

// The types and the operation with which NCCL runs a reduction of tensors.
struct Plan {
  Type type = Type::kFloat;
  Op op = Op::kSum;
  // Number of NCCL's elements for one element of the tensor: 2 for complex numbers.
  int64_t per_element = 1;
  // Whether the values are reduced as int32: NCCL has no 16 bit integers. The low 16 bits of the result are
  // correct.
  bool widened = false;
  // Whether NCCL does not have the operation: the ranks exchange the values, and each combines them itself.
  // Then `type` and `op` have no meaning.
  bool combined = false;
};

// The plan for a reduction, without the factor of premul_sum. Errors: InvalidArgument for dtypes that NCCL
// does not support, and for operations that are not defined for the dtype.
absl::StatusOr<Plan> plan(at::ScalarType dtype, ReduceOp op);

// Checks whether rank `self` can exchange messages with `peer`. Errors: InvalidArgument for -1 (any rank) and
// for `self`.
absl::Status check_peer(int peer, int self);

}  // namespace gradwire::collectives::nccl
