#pragma once

#include <cstdint>
#include <string>

namespace gradwire::collectives {

// How a reduction combines what the ranks bring, element by element. InvalidArgument for a dtype that is not
// named.
enum class ReduceOp : uint8_t {
  kSum,      // Of bool: "or", as in libtorch.
  kProduct,  // Not of complex numbers. Of bool: "and".
  kMin,      // Not of complex numbers.
  kMax,      // Not of complex numbers.
  kBand,     // Bitwise "and" of integers and bool; not with nccl.
  kBor,      // Bitwise "or" of integers and bool; not with nccl.
  kBxor,     // Bitwise "exclusive or" of integers and bool; not with nccl.
  kAvg,      // The sum divided by the number of ranks; of floating and complex numbers.
};

// "sum", "avg", ...
std::string to_string(ReduceOp op);

// A ReduceOp, or the sum of what each rank brings times a factor of its own (premul_sum).
struct Reduction {
  Reduction(ReduceOp operation) : op(operation) {}  // NOLINT(google-explicit-constructor): a ReduceOp is one.

  ReduceOp op;              // What the elements are combined with.
  bool multiplies = false;  // Whether what this rank brings is multiplied by `factor` first; with kSum alone.
  double factor = 1;        // This rank's factor; ranks may differ.
};

// What this rank brings is multiplied by `factor` before the sum. For floating and complex numbers.
inline Reduction premul_sum(double factor) {
  Reduction reduction(ReduceOp::kSum);
  reduction.multiplies = true;
  reduction.factor = factor;
  return reduction;
}

}  // namespace gradwire::collectives
