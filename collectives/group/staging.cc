// Staging: temporary tensors for those that a backend cannot use directly, because they are not plain
// (is_plain), or on a device that is staged through the host. The temporary tensors are plain, so all code
// after this works with addresses and sizes only.

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <utility>

#include "gradwire/collectives/group/operations.h"

namespace gradwire::collectives {

void copy_into(const at::Tensor& from, const at::Tensor& into) {
  // libtorch allows writing to an inference tensor only in inference mode, and the mode belongs to the
  // thread.
  const c10::InferenceMode inference(into.is_inference());
  const c10::NoGradGuard no_grad;
  into.copy_(from.view_as(into));
}

bool Staging::direct(const at::Tensor& tensor) const {
  return is_plain(tensor) && !run_.staged.contains(tensor.device().type());
}

at::Tensor Staging::temporary(const at::Tensor& tensor, bool with_values) const {
  // The caller may be in inference mode. A temporary tensor made there would be an inference tensor, and
  // another thread, outside that mode, could not write to it.
  const c10::InferenceMode ordinary(false);
  const c10::NoGradGuard no_grad;
  at::TensorOptions options = at::TensorOptions().dtype(tensor.scalar_type()).device(tensor.device());
  // Copies between pinned memory and a GPU are faster. Not every accelerator has such memory.
  if (run_.staged.contains(tensor.device().type()))
    options = options.device(at::kCPU).pinned_memory(tensor.is_cuda());
  at::Tensor copy = at::empty(tensor.sizes(), options);
  if (with_values) copy.copy_(tensor);
  return copy;
}

at::Tensor Staging::source(at::Tensor tensor) {
  if (direct(tensor)) return tensor;
  return temporary(tensor, /*with_values=*/true);
}

at::Tensor Staging::source(at::Tensor tensor, const Reduction& op) {
  return op.multiplies ? multiplied(tensor, op.factor) : source(std::move(tensor));
}

at::Tensor Staging::target(at::Tensor tensor, const Reduction& op) {
  if (!op.multiplies) return target(std::move(tensor), /*keeps=*/true);
  at::Tensor product = multiplied(tensor, op.factor);
  copies_.push_back({product, std::move(tensor)});
  return product;
}

at::Tensor Staging::multiplied(const at::Tensor& tensor, double factor) const {
  const c10::InferenceMode ordinary(false);
  const c10::NoGradGuard no_grad;
  at::Tensor product = at::mul(tensor.detach(), factor).contiguous();
  return direct(product) ? product : temporary(product, /*with_values=*/true);
}

at::Tensor Staging::target(at::Tensor tensor, bool keeps) {
  if (direct(tensor)) {
    bump_version(tensor);
    return tensor;
  }
  // bump_version is not needed here: copy_into() changes the version of the target when it writes the result.
  at::Tensor copy = temporary(tensor, keeps);
  copies_.push_back({copy, std::move(tensor)});
  return copy;
}

std::vector<at::Tensor> Staging::sources(std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) tensor = source(std::move(tensor));
  return tensors;
}

std::vector<at::Tensor> Staging::targets(std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) tensor = target(std::move(tensor), /*keeps=*/false);
  return tensors;
}

absl::Status Staging::finish(absl::Status status) {
  // Taken also after an error: the next operation of this thread must not find it.
  run_.enqueued = run_.backend.take_enqueued();
  if (!status.ok() || copies_.empty()) return status;
  // The copies run on the current stream, so it must wait for the operation first.
  if (run_.enqueued != nullptr) run_.enqueued->order_current_stream();
  for (const Copy& copy : copies_) copy_into(copy.from, copy.into);
  return status;
}

}  // namespace gradwire::collectives
