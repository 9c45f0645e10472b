#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <functional>
#include <vector>

#include "gradwire/tests/device/raw_tensor.h"

namespace gradwire::lag {

// The value with each defined tensor in it, also in lists, replaced by what `replace` returns.
c10::IValue map_tensors(const c10::IValue& value,
                        const std::function<at::Tensor(const at::Tensor&)>& replace);

// The defined tensors in the value, in order.
std::vector<at::Tensor> tensors_in(const c10::IValue& value);

// The arguments of a call of an operator, in the form that a kernel may own: raw tensors for those of the
// device. CPU tensors are cloned, as CUDA copies the arguments of a kernel at its launch.
class KernelArguments {
 public:
  // `seed`: the seed of the generator that the kernel uses, for operators with an argument of that type.
  KernelArguments(const c10::FunctionSchema& schema, const torch::jit::Stack& arguments, uint64_t seed);

  // Arguments for the operator of the CPU, with tensors over the memory of the device.
  torch::jit::Stack over_memory() const;
  // The same, but tensors that the operator writes are copies.
  torch::jit::Stack with_copies_of_written() const;
  // Arguments for the operator of the Meta device, which only computes shapes.
  torch::jit::Stack without_data() const;
  // Arguments for the operator of the CPU, with tensors full of zeros.
  torch::jit::Stack with_zeros() const;

  // Whether the tensors in `used`, which over_memory() returned, still have their shapes. An operator of the
  // CPU resizes an `out` argument that has another shape than the result.
  bool same_shapes(const torch::jit::Stack& used) const;

 private:
  struct Captured {
    bool on_device = false;
    bool written = false;
    RawTensor raw;
    at::Tensor value;
  };

  torch::jit::Stack build(c10::Device device, const std::function<at::Tensor(const Captured&)>& make) const;

  // The arguments. Their tensors stand in `captured_`, in order.
  torch::jit::Stack arguments_;
  std::vector<Captured> captured_;
  // The index of the argument that is a generator, or -1.
  int generator_ = -1;
  uint64_t seed_ = 0;
};

}  // namespace gradwire::lag
