#include "gradwire/tests/device/kernel_arguments.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty_strided.h>

#include <optional>
#include <utility>

namespace gradwire::lag {
namespace {

bool is_generator(const c10::Argument& argument) {
  c10::TypePtr type = argument.type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::GeneratorType;
}

}  // namespace

c10::IValue map_tensors(const c10::IValue& value,
                        const std::function<at::Tensor(const at::Tensor&)>& replace) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() ? c10::IValue(replace(tensor)) : value;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> mapped;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      mapped.push_back(tensor.defined() ? replace(tensor) : tensor);
    }
    return mapped;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> mapped;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      mapped.push_back(tensor && tensor->defined() ? std::optional(replace(*tensor)) : tensor);
    }
    return mapped;
  }
  return value;
}

std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  std::vector<at::Tensor> found;
  map_tensors(value, [&found](const at::Tensor& tensor) {
    found.push_back(tensor);
    return tensor;
  });
  return found;
}

KernelArguments::KernelArguments(const c10::FunctionSchema& schema, const torch::jit::Stack& arguments,
                                 uint64_t seed)
    : seed_(seed) {
  const at::Tensor placeholder = at::empty_strided({0}, {1});
  for (size_t i = 0; i < arguments.size(); i++) {
    const c10::Argument& argument = schema.arguments()[i];
    if (is_generator(argument)) generator_ = static_cast<int>(i);
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    arguments_.push_back(map_tensors(arguments[i], [&](const at::Tensor& tensor) {
      Captured captured{.written = written};
      captured.on_device = tensor.device().type() == c10::DeviceType::PrivateUse1;
      if (captured.on_device) {
        captured.raw = RawTensor(tensor);
      } else {
        captured.value = tensor.clone();
        if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
          captured.value.unsafeGetTensorImpl()->set_wrapped_number(true);
        }
      }
      captured_.push_back(std::move(captured));
      return placeholder;
    }));
  }
}

torch::jit::Stack KernelArguments::build(c10::Device device,
                                         const std::function<at::Tensor(const Captured&)>& make) const {
  torch::jit::Stack built;
  size_t next = 0;
  for (size_t i = 0; i < arguments_.size(); i++) {
    if (static_cast<int>(i) == generator_ && !device.is_meta()) {
      built.emplace_back(at::make_generator<at::CPUGeneratorImpl>(seed_));
    } else if (static_cast<int>(i) == generator_) {
      built.emplace_back();
    } else if (arguments_[i].isDevice()) {
      built.emplace_back(device);
    } else {
      built.push_back(map_tensors(arguments_[i], [&](const at::Tensor&) { return make(captured_[next++]); }));
    }
  }
  return built;
}

torch::jit::Stack KernelArguments::over_memory() const {
  RawTensors tensors(c10::DispatchKey::CPU);
  return build(c10::DeviceType::CPU, [&tensors](const Captured& captured) {
    return captured.on_device ? tensors.make(captured.raw) : captured.value;
  });
}

bool KernelArguments::same_shapes(const torch::jit::Stack& used) const {
  size_t next = 0;
  for (const c10::IValue& argument : used) {
    for (const at::Tensor& tensor : tensors_in(argument)) {
      const Captured& captured = captured_[next++];
      if (captured.on_device && tensor.sizes() != captured.raw.sizes) return false;
    }
  }
  return true;
}

torch::jit::Stack KernelArguments::with_copies_of_written() const {
  RawTensors tensors(c10::DispatchKey::CPU);
  return build(c10::DeviceType::CPU, [&tensors](const Captured& captured) {
    if (!captured.on_device) return captured.value;
    const at::Tensor tensor = tensors.make(captured.raw);
    return captured.written ? tensor.clone() : tensor;
  });
}

torch::jit::Stack KernelArguments::without_data() const {
  RawTensors tensors(c10::DispatchKey::Meta);
  return build(c10::DeviceType::Meta, [&tensors](const Captured& captured) {
    if (captured.on_device) return tensors.make(captured.raw);
    // A tensor with one number of the CPU may take part in an operation of any device. Others are lists of
    // indices.
    return captured.value.dim() == 0 ? captured.value : tensors.make(RawTensor(captured.value));
  });
}

torch::jit::Stack KernelArguments::with_zeros() const {
  return build(c10::DeviceType::CPU, [](const Captured& captured) {
    if (!captured.on_device) return captured.value;
    at::Tensor zeros = at::empty_strided(captured.raw.sizes, captured.raw.strides,
                                         c10::typeMetaToScalarType(captured.raw.type));
    zeros.zero_();
    if (captured.raw.wrapped_number) zeros.unsafeGetTensorImpl()->set_wrapped_number(true);
    return zeros;
  });
}

}  // namespace gradwire::lag
