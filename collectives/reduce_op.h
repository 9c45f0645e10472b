#pragma once

#include <cstdint>
#include <string>

namespace gradwire::collectives {

// How a reduction combines what the ranks bring, element by element. Bitwise ones are for integers and bool; kAvg, the
// sum divided by the number of ranks, for floating and complex numbers; kMin, kMax and kProduct not for complex ones. Of
// bool, kSum is "or" and kProduct "and", as in libtorch.
enum class ReduceOp : uint8_t { kSum, kProduct, kMin, kMax, kBand, kBor, kBxor, kAvg };

// "sum", "avg", ...
std::string to_string(ReduceOp op);

// A ReduceOp, or the sum of what each rank brings times a factor of its own (premul_sum).
struct Reduction {
  Reduction(ReduceOp operation) : op(operation) {}  // NOLINT(google-explicit-constructor): a ReduceOp is one.

  ReduceOp op;
  bool multiplies = false;
  double factor = 1;
};

// What this rank brings is multiplied by `factor` before the sum. For floating and complex numbers.
inline Reduction premul_sum(double factor) {
  Reduction reduction(ReduceOp::kSum);
  reduction.multiplies = true;
  reduction.factor = factor;
  return reduction;
}

}  // namespace gradwire::collectives
