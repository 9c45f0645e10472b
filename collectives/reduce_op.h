#pragma once

#include <cstdint>
#include <string>

namespace gradwire::collectives {

// How a reduction combines the ranks' tensors, element by element. A dtype that the operation does not
// support is InvalidArgument.
enum class ReduceOp : uint8_t {
  kSum,      // The sum; for bool it is "or", as in libtorch.
  kProduct,  // The product; for bool it is "and". Not for complex numbers.
  kMin,      // The minimum. Not for complex numbers.
  kMax,      // The maximum. Not for complex numbers.
  kBand,     // Bitwise "and"; only for integers and bool.
  kBor,      // Bitwise "or"; only for integers and bool.
  kBxor,     // Bitwise "exclusive or"; only for integers and bool.
  kAvg,      // The sum divided by the number of ranks; only for floating and complex numbers.
};

// "sum", "avg", ...
std::string to_string(ReduceOp op);

// A ReduceOp, or a sum in which each rank's tensor is first multiplied by that rank's factor (premul_sum).
struct Reduction {
  Reduction(ReduceOp operation) : op(operation) {}  // NOLINT(google-explicit-constructor): a ReduceOp is one.

  ReduceOp op;              // The operation that combines the elements.
  bool multiplies = false;  // Whether this rank's tensor is multiplied by `factor` first; only with kSum.
  double factor = 1;        // This rank's factor; it may differ between ranks.
};

// A sum in which this rank's tensor is multiplied by `factor` first. For floating and complex numbers. The
// products have the dtype of the tensor: those of half and bfloat16 are rounded before they are added.
inline Reduction premul_sum(double factor) {
  Reduction reduction(ReduceOp::kSum);
  reduction.multiplies = true;
  reduction.factor = factor;
  return reduction;
}

}  // namespace gradwire::collectives
