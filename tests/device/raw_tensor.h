#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <map>
#include <vector>

namespace gradwire::lag {

// The address, shape and type of a tensor. A kernel has RawTensors instead of tensors, as CUDA's kernels have
// pointers: it does not keep the memory, so the rules for freeing memory apply.
struct RawTensor {
  RawTensor() = default;
  // `tensor` is defined and strided.
  explicit RawTensor(const at::Tensor& tensor);

  void* storage = nullptr;
  size_t storage_bytes = 0;
  int64_t offset = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  caffe2::TypeMeta type;
  bool conjugate = false;
  bool negative = false;
  bool wrapped_number = false;
};

// Makes tensors of RawTensors. Tensors with the same storage get one storage again, so that operators that
// check for overlapping memory see it. Not thread-safe.
class RawTensors {
 public:
  // `key`: CPU, for tensors over the memory, or Meta, for tensors without data.
  explicit RawTensors(c10::DispatchKey key) : key_(key) {}

  at::Tensor make(const RawTensor& raw);

 private:
  const c10::DispatchKey key_;
  std::map<void*, c10::Storage> storages_;
};

}  // namespace gradwire::lag
