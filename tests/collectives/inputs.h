#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/tests/collectives/support.h"

namespace gradwire::collectives {

// The dtypes that tests reduce and copy.
inline constexpr c10::ScalarType kDtypes[] = {at::kByte,   at::kChar, at::kShort,        at::kInt,
                                              at::kLong,   at::kHalf, at::kBFloat16,     at::kFloat,
                                              at::kDouble, at::kBool, at::kComplexFloat, at::kComplexDouble};
// Dtypes of the class kOther: they are copied but cannot be reduced.
inline constexpr c10::ScalarType kOtherDtypes[] = {
    at::kUInt16,        at::kUInt32,      at::kUInt64,          at::kComplexHalf,
    at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz};

DtypeClass class_of(c10::ScalarType dtype);

// The input of a rank: small whole numbers, so that every result is exact in every dtype and in every order.
// `salt` selects one of several inputs of the rank.
at::Tensor input_of(int rank, const std::vector<int64_t>& shape, c10::ScalarType dtype, int salt = 0);

// A tensor whose device is a GPU but which has no memory, for calls that must be refused before they access
// it.
at::Tensor without_memory_on_gpu(c10::ScalarType dtype);

// Throws std::runtime_error with `what` unless `good`. Unlike GoogleTest's macros it works in every thread
// and process.
void expect(bool good, const std::string& what);
// Throws std::runtime_error with `what` unless the tensors are equal.
void expect_equal(const at::Tensor& got, const at::Tensor& wanted, const std::string& what);

}  // namespace gradwire::collectives
