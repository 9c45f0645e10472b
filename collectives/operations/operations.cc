// The collectives as they run in their turn. Each of them has the same steps: Staging replaces tensors that
// the backend cannot use by temporary ones, the backend runs the operation, and Staging::finish() copies the
// results back.

#include "gradwire/collectives/operations/operations.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "gradwire/base/stable_hash.h"

namespace gradwire::collectives {
namespace {

uint64_t hash_of(at::IntArrayRef sizes) {
  return stable_hash({reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof(int64_t)});
}

}  // namespace

int64_t data_bytes(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  // A sparse tensor has no nbytes().
  if (tensor.is_sparse()) return static_cast<int64_t>(tensor._indices().nbytes() + tensor._values().nbytes());
  return static_cast<int64_t>(tensor.nbytes());
}

OperationRecord record_of(Operation operation, const at::Tensor& tensor) {
  OperationRecord record;
  record.operation = operation;
  record.dtype = c10::toString(tensor.scalar_type());
  record.bytes = data_bytes(tensor);
  const at::IntArrayRef sizes = tensor.sizes();
  record.dimensions = static_cast<uint8_t>(std::min<std::size_t>(sizes.size(), 255));
  const std::size_t kept = std::min<std::size_t>(sizes.size(), OperationRecord::kMostSizes);
  bool whole = kept == sizes.size();
  for (std::size_t i = 0; i < kept; ++i) {
    record.sizes[i] =
        static_cast<uint32_t>(std::min<int64_t>(sizes[i], std::numeric_limits<uint32_t>::max()));
    whole = whole && static_cast<int64_t>(record.sizes[i]) == sizes[i];
  }
  record.elements = tensor.numel();
  // The record has a fixed size. If it cannot hold the whole shape, the hash still lets check_consistency()
  // see a difference.
  if (!whole) [[unlikely]]
    record.shape_hash = hash_of(sizes);
  return record;
}

OperationRecord record_of_list(Operation operation, const std::vector<at::Tensor>& tensors) {
  OperationRecord record;
  record.operation = operation;
  record.dtype = c10::toString(tensors.front().scalar_type());
  std::vector<int64_t> numbers;
  for (const at::Tensor& tensor : tensors) {
    record.elements += tensor.numel();
    record.bytes += data_bytes(tensor);
    numbers.push_back(tensor.dim());
    numbers.insert(numbers.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  record.shape_hash = hash_of(numbers);
  return record;
}

bool has_other_shape(const std::vector<at::Tensor>& list, const at::Tensor& like) {
  return std::any_of(list.begin(), list.end(), [&like](const at::Tensor& tensor) {
    return tensor.defined() && tensor.sizes() != like.sizes();
  });
}

OperationRecord with_op(OperationRecord record, const Reduction& op) {
  record.reduction = static_cast<int8_t>(op.op);
  record.multiplies = op.multiplies;
  return record;
}

namespace operations {
namespace {

// The reduction for the backend: Staging has already multiplied the values by the factor.
Reduction without_factor(const Reduction& op) { return op.op; }

}  // namespace

absl::Status broadcast(RunContext& run, at::Tensor tensor, int root) {
  Staging staging(run);
  at::Tensor staged = run.rank == root ? staging.source(std::move(tensor))
                                       : staging.target(std::move(tensor), /*keeps=*/false);
  return staging.finish(run.backend.broadcast(std::move(staged), root, run.deadline));
}

absl::Status reduce(RunContext& run, at::Tensor tensor, int root, const Reduction& op) {
  Staging staging(run);
  at::Tensor staged =
      run.rank == root ? staging.target(std::move(tensor), op) : staging.source(std::move(tensor), op);
  return staging.finish(run.backend.reduce(std::move(staged), root, without_factor(op), run.deadline));
}

absl::Status all_reduce(RunContext& run, at::Tensor tensor, const Reduction& op) {
  Staging staging(run);
  return staging.finish(
      run.backend.all_reduce(staging.target(std::move(tensor), op), without_factor(op), run.deadline));
}

absl::Status gather(RunContext& run, at::Tensor tensor, Tensors outputs, int root) {
  Staging staging(run);
  at::Tensor source = staging.source(std::move(tensor));
  return staging.finish(
      run.backend.gather(std::move(source), staging.targets(std::move(outputs)), root, run.deadline));
}

absl::Status all_gather(RunContext& run, at::Tensor tensor, Tensors outputs) {
  Staging staging(run);
  at::Tensor source = staging.source(std::move(tensor));
  return staging.finish(
      run.backend.all_gather(std::move(source), staging.targets(std::move(outputs)), run.deadline));
}

absl::Status all_gather_uneven(RunContext& run, at::Tensor tensor, Tensors outputs) {
  Staging staging(run);
  at::Tensor source = staging.source(std::move(tensor));
  return staging.finish(
      run.backend.all_gather_uneven(std::move(source), staging.targets(std::move(outputs)), run.deadline));
}

absl::Status scatter(RunContext& run, at::Tensor tensor, Tensors inputs, int root) {
  Staging staging(run);
  Tensors sources = staging.sources(std::move(inputs));
  return staging.finish(run.backend.scatter(staging.target(std::move(tensor), /*keeps=*/false),
                                            std::move(sources), root, run.deadline));
}

absl::Status reduce_scatter(RunContext& run, at::Tensor output, Tensors inputs, const Reduction& op) {
  Staging staging(run);
  for (at::Tensor& input : inputs) input = staging.source(std::move(input), op);
  return staging.finish(run.backend.reduce_scatter(staging.target(std::move(output), /*keeps=*/false),
                                                   std::move(inputs), without_factor(op), run.deadline));
}

absl::Status all_to_all(RunContext& run, Tensors outputs, Tensors inputs) {
  Staging staging(run);
  Tensors sources = staging.sources(std::move(inputs));
  return staging.finish(
      run.backend.all_to_all(staging.targets(std::move(outputs)), std::move(sources), run.deadline));
}

absl::Status all_gather_into_tensor(RunContext& run, at::Tensor output, at::Tensor input) {
  Staging staging(run);
  at::Tensor source = staging.source(std::move(input));
  return staging.finish(run.backend.all_gather_into_tensor(staging.target(std::move(output), /*keeps=*/false),
                                                           std::move(source), run.size, run.deadline));
}

absl::Status reduce_scatter_tensor(RunContext& run, at::Tensor output, at::Tensor input,
                                   const Reduction& op) {
  Staging staging(run);
  at::Tensor source = staging.source(std::move(input), op);
  return staging.finish(run.backend.reduce_scatter_tensor(staging.target(std::move(output), /*keeps=*/false),
                                                          std::move(source), without_factor(op), run.size,
                                                          run.deadline));
}

absl::Status all_to_all_single(RunContext& run, at::Tensor output, at::Tensor input,
                               const std::vector<int64_t>& output_splits,
                               const std::vector<int64_t>& input_splits) {
  Staging staging(run);
  at::Tensor source = staging.source(std::move(input));
  return staging.finish(run.backend.all_to_all_single(staging.target(std::move(output), /*keeps=*/false),
                                                      std::move(source), output_splits, input_splits,
                                                      run.deadline));
}

}  // namespace operations

// Staging: temporary tensors for those that a backend cannot use directly, because they are not plain
// (is_plain), or on a device that is staged through the host. The temporary tensors are plain, so all code
// after this works with addresses and sizes only.

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
