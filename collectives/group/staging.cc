#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "gradwire/collectives/group/operations.h"

namespace gradwire::collectives {
void copy_into(const at::Tensor& from, const at::Tensor& into) {
  // Inference tensors may be written to in inference mode alone, whichever thread this is.
  const c10::InferenceMode inference(into.is_inference());
  const c10::NoGradGuard no_grad;
  into.copy_(from.view_as(into));
}

bool Staging::direct(const at::Tensor& tensor) const {
  return is_plain(tensor) && !(run_.stage_to_host && !tensor.is_cpu());
}

at::Tensor Staging::temporary(const at::Tensor& tensor, bool with_values) const {
  const c10::InferenceMode ordinary(false);
  const c10::NoGradGuard no_grad;
  at::TensorOptions options = at::TensorOptions().dtype(tensor.scalar_type()).device(tensor.device());
  if (run_.stage_to_host && !tensor.is_cpu()) options = options.device(at::kCPU).pinned_memory(true);
  at::Tensor copy = at::empty(tensor.sizes(), options);
  if (with_values) copy.copy_(tensor);
  return copy;
}

at::Tensor Staging::source(const at::Tensor& tensor) {
  return direct(tensor) ? tensor : temporary(tensor, /*with_values=*/true);
}

at::Tensor Staging::source(const at::Tensor& tensor, const Reduction& op) {
  return op.multiplies ? multiplied(tensor, op.factor) : source(tensor);
}

at::Tensor Staging::target(const at::Tensor& tensor, const Reduction& op) {
  if (!op.multiplies) return target(tensor, /*keeps=*/true);
  at::Tensor product = multiplied(tensor, op.factor);
  copies_.push_back({product, tensor});
  return product;
}

at::Tensor Staging::multiplied(const at::Tensor& tensor, double factor) const {
  const c10::InferenceMode ordinary(false);
  const c10::NoGradGuard no_grad;
  at::Tensor product = at::mul(tensor.detach(), factor).contiguous();
  return direct(product) ? product : temporary(product, /*with_values=*/true);
}

at::Tensor Staging::target(const at::Tensor& tensor, bool keeps) {
  if (direct(tensor)) {
    bump_version(tensor);
    return tensor;
  }
  at::Tensor copy = temporary(tensor, keeps);
  copies_.push_back({copy, tensor});
  return copy;
}

std::vector<at::Tensor> Staging::sources(std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) tensor = source(tensor);
  return tensors;
}

std::vector<at::Tensor> Staging::targets(std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) tensor = target(tensor, /*keeps=*/false);
  return tensors;
}

absl::Status Staging::finish(absl::Status status) {
  run_.enqueued = run_.backend.take_enqueued();
  if (!status.ok() || copies_.empty()) return status;
  // The copies run on the current stream.
  if (run_.enqueued != nullptr) run_.enqueued->order_current_stream();
  for (const Copy& copy : copies_) copy_into(copy.from, copy.into);
  return status;
}

}  // namespace gradwire::collectives
