#include "gradwire/collectives/checks/reduction_meaning.h"

#include <ATen/ops/add.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>

namespace gradwire::collectives {
namespace {

bool is_integer(c10::ScalarType dtype) { return c10::isIntegralType(dtype, /*includeBool=*/true); }

// Whether libtorch has arithmetic for this dtype on every device.
bool has_arithmetic(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
    case c10::ScalarType::Short:
    case c10::ScalarType::Int:
    case c10::ScalarType::Long:
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
    case c10::ScalarType::Bool:
    case c10::ScalarType::ComplexFloat:
    case c10::ScalarType::ComplexDouble:
      return true;
    default:
      return false;
  }
}

}  // namespace

const char* unsupported_reason(const Reduction& op, c10::ScalarType dtype) {
  if (!has_arithmetic(dtype)) return "this dtype has no arithmetic";
  if (op.multiplies) {
    if (op.op != ReduceOp::kSum) return "only a sum can be premultiplied";
    return is_integer(dtype) ? "only floating and complex numbers can be premultiplied" : nullptr;
  }
  switch (op.op) {
    case ReduceOp::kSum:
      return nullptr;
    case ReduceOp::kAvg:
      return is_integer(dtype) ? "only floating and complex numbers have an average" : nullptr;
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return c10::isComplexType(dtype) ? "not supported for complex numbers" : nullptr;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return is_integer(dtype) ? nullptr : "bitwise operations are for integers and bool";
  }
  return "unknown operation";
}

bool combines_in_float(ReduceOp op, c10::ScalarType dtype, int ranks) {
  if (ranks == 1 || (dtype != c10::ScalarType::Half && dtype != c10::ScalarType::BFloat16)) return false;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
      // The result of two ranks is rounded only once anyway.
      return ranks > 2;
    case ReduceOp::kAvg:
      return true;
    default:
      return false;
  }
}

void combine_tensors(ReduceOp op, at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      at::add_out(out, a, b);
      return;
    case ReduceOp::kProduct:
      at::mul_out(out, a, b);
      return;
    case ReduceOp::kMin:
      at::minimum_out(out, a, b);
      return;
    case ReduceOp::kMax:
      at::maximum_out(out, a, b);
      return;
    case ReduceOp::kBand:
      at::bitwise_and_out(out, a, b);
      return;
    case ReduceOp::kBor:
      at::bitwise_or_out(out, a, b);
      return;
    case ReduceOp::kBxor:
      at::bitwise_xor_out(out, a, b);
      return;
  }
}

}  // namespace gradwire::collectives
