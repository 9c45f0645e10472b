#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/tests/collectives/support.h"

namespace gradwire::collectives {

// What groups are tried with.
inline constexpr c10::ScalarType kDtypes[] = {at::kByte,   at::kChar, at::kShort,        at::kInt,
                                              at::kLong,   at::kHalf, at::kBFloat16,     at::kFloat,
                                              at::kDouble, at::kBool, at::kComplexFloat, at::kComplexDouble};
// Of no class above: moved, and not reduced.
inline constexpr c10::ScalarType kOtherDtypes[] = {at::kUInt16, at::kComplexHalf, at::kFloat8_e4m3fn};

DtypeClass class_of(c10::ScalarType dtype);

// What rank `rank` brings: small whole numbers, so that every result is exact in every dtype and every order.
at::Tensor brought(int rank, const std::vector<int64_t>& shape, c10::ScalarType dtype, int salt = 0);

// A tensor that says it is on a GPU, without memory: for what must be refused before anyone looks at it.
at::Tensor without_memory_on_gpu(c10::ScalarType dtype);

// Throw std::runtime_error that says `what`: unlike GoogleTest's, in any thread and process.
void expect(bool good, const std::string& what);
void expect_equal(const at::Tensor& got, const at::Tensor& wanted, const std::string& what);

}  // namespace gradwire::collectives
