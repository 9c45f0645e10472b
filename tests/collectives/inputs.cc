#include "gradwire/tests/collectives/inputs.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Formatting.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "absl/strings/str_cat.h"

namespace gradwire::collectives {

DtypeClass class_of(c10::ScalarType dtype) {
  if (std::find(std::begin(kOtherDtypes), std::end(kOtherDtypes), dtype) != std::end(kOtherDtypes)) {
    return DtypeClass::kOther;
  }
  if (dtype == at::kBool) return DtypeClass::kBool;
  if (c10::isComplexType(dtype)) return DtypeClass::kComplex;
  return c10::isFloatingType(dtype) ? DtypeClass::kFloating : DtypeClass::kInteger;
}

at::Tensor input_of(int rank, const std::vector<int64_t>& shape, c10::ScalarType dtype, int salt) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const at::Tensor numbers = (at::arange(count, at::kLong) * (rank + 3) + rank + salt).remainder(4);
  return (dtype == at::kBool ? numbers.remainder(2) : numbers).to(dtype).reshape(shape);
}

at::Tensor without_memory_on_gpu(c10::ScalarType dtype) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::Device(c10::kCUDA, 0)),
                       nullptr, /*resizable=*/false);
  return at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::scalarTypeToTypeMeta(dtype));
}

void expect(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

void expect_equal(const at::Tensor& got, const at::Tensor& wanted, const std::string& what) {
  if (at::equal(got, wanted)) return;
  throw std::runtime_error(wanted.numel() > 20
                               ? what + ": wrong result"
                               : absl::StrCat(what, ": got ", c10::str(got), "\nwanted ", c10::str(wanted)));
}

}  // namespace gradwire::collectives
