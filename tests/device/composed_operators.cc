#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include "gradwire/tests/device/fallback.h"

// Operators for which libtorch chooses another formula on a device than on the CPU. Here they use the CPU's,
// so that tests can compare bits.
namespace gradwire::lag {
namespace {

c10::OperatorHandle find(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                       at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                       int64_t groups) {
  static const c10::OperatorHandle op = find("aten::convolution");
  return run_on_device(op,
                       {input, weight, bias, stride, padding, dilation, transposed, output_padding, groups})
      .at(0)
      .toTensor();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> mask) {
  static const c10::OperatorHandle op = find("aten::convolution_backward");
  const std::vector<int64_t> bias_sizes = {grad_output.size(1)};
  const torch::jit::Stack results =
      run_on_device(op, {grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
                         output_padding, groups, c10::List<bool>({mask[0], mask[1], mask[2]})});
  return {results.at(0).toTensor(), results.at(1).toTensor(), results.at(2).toTensor()};
}

// The operator of the CPU draws from the CPU's generator while it runs, so its numbers would depend on the
// order of the streams.
std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) {
    return {input.clone(), at::ones_like(input, at::kBool)};
  }
  if (p == 1) return {at::zeros_like(input), at::zeros_like(input, at::kBool)};
  at::Tensor kept = at::empty_like(input).bernoulli_(1 - p);
  return {input.mul(kept).mul_(1 / (1 - p)), kept.to(at::kBool)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("native_dropout", &dropout);
  for (const char* name : {"native_layer_norm", "native_group_norm", "addr", "all.dims", "any.dims",
                           "linalg__powsum", "silu_backward", "mish_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

}  // namespace
}  // namespace gradwire::lag
