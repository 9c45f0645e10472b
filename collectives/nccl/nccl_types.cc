#include "gradwire/collectives/nccl/nccl_types.h"

#include "absl/strings/str_cat.h"

namespace gradwire::collectives::nccl {
namespace {

absl::Status refuse(at::ScalarType dtype, ReduceOp op, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(to_string(op), " of ", c10::toString(dtype), ": ", why));
}

absl::StatusOr<Op> operation(at::ScalarType dtype, ReduceOp op) {
  const bool is_bool = dtype == at::kBool;
  switch (op) {
    case ReduceOp::kSum:
      // The sum of bools is "or", which is the maximum. A sum of bytes would give values other than 0 and 1.
      return is_bool ? Op::kMax : Op::kSum;
    case ReduceOp::kProduct:
      return is_bool ? Op::kMin : Op::kProduct;
    case ReduceOp::kMin:
      return Op::kMin;
    case ReduceOp::kMax:
      return Op::kMax;
    case ReduceOp::kAvg:
      if (!c10::isIntegralType(dtype, /*includeBool=*/true)) return Op::kAvg;
      return refuse(dtype, op, "only floating and complex numbers have an average");
    case ReduceOp::kBand:
    case ReduceOp::kBor:
      // The bits of bools are their values, 0 or 1.
      if (is_bool) return op == ReduceOp::kBand ? Op::kMin : Op::kMax;
      break;
    case ReduceOp::kBxor:
      break;
  }
  return refuse(dtype, op, "unknown operation");
}

}  // namespace

absl::StatusOr<Plan> plan(at::ScalarType dtype, ReduceOp op) {
  const bool bitwise = op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
  if (bitwise && (dtype != at::kBool || op == ReduceOp::kBxor)) {
    switch (dtype) {
      case at::kBool:
      case at::kByte:
      case at::kChar:
      case at::kShort:
      case at::kInt:
      case at::kLong:
        return Plan{.combined = true};
      default:
        return refuse(dtype, op, "bitwise operations are for integers and bool");
    }
  }
  const absl::StatusOr<Op> found = operation(dtype, op);
  if (!found.ok()) return found.status();
  switch (dtype) {
    case at::kBool:
    case at::kByte:
      return Plan{Type::kUint8, *found};
    case at::kChar:
      return Plan{Type::kInt8, *found};
    case at::kShort:
      return Plan{Type::kInt32, *found, 1, /*widened=*/true};
    case at::kInt:
      return Plan{Type::kInt32, *found};
    case at::kLong:
      return Plan{Type::kInt64, *found};
    case at::kHalf:
      return Plan{Type::kHalf, *found};
    case at::kBFloat16:
      return Plan{Type::kBfloat16, *found};
    case at::kFloat:
      return Plan{Type::kFloat, *found};
    case at::kDouble:
      return Plan{Type::kDouble, *found};
    case at::kComplexFloat:
    case at::kComplexDouble:
      if (*found != Op::kSum && *found != Op::kAvg)
        return refuse(dtype, op, "not supported for complex numbers");
      return Plan{dtype == at::kComplexFloat ? Type::kFloat : Type::kDouble, *found, 2};
    default:
      return refuse(dtype, op, "nccl does not support this dtype");
  }
}

absl::Status check_peer(int peer, int self) {
  if (peer < 0) {
    return absl::InvalidArgumentError(
        "nccl cannot receive from any source: NCCL matches messages only by rank; give the rank (src)");
  }
  if (peer != self) return absl::OkStatus();
  return absl::InvalidArgumentError("nccl cannot send from a rank to itself; copy the tensor instead");
}

}  // namespace gradwire::collectives::nccl
