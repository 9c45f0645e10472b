#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace gradwire {

// The arguments of a case, all on one device.
struct OperatorInputs {
  // Shapes {4, 6}, {4, 6}, {6, 5}, {2, 3, 8, 8}.
  at::Tensor a, b, m, image;
  // Shape {4}: numbers in [0, 4). Shape {4, 6}: numbers in [0, 6), and truth values.
  at::Tensor index, columns, mask;
  // Shape {4, 4}, symmetric and positive definite.
  at::Tensor definite;
};

using OperatorResults = std::vector<at::Tensor>;

// One use of an operator. The same function runs on the CPU and on a device.
struct OperatorCase {
  std::string name;
  std::function<OperatorResults(OperatorInputs&)> run;
  // The host waits, because the size of a result depends on data, or because it reads an error of the
  // operator.
  bool waits = false;
};

// Operators that return new tensors.
std::vector<OperatorCase> functional_cases();
// Operators that write to their arguments, to `out` arguments, or that return views.
std::vector<OperatorCase> mutating_cases();

// The name, for GoogleTest.
inline void PrintTo(const OperatorCase& each, std::ostream* to) { *to << each.name; }

}  // namespace gradwire
