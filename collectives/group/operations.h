#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/collectives/flight/operation.h"
#include "gradwire/collectives/group_backend.h"

// From checked arguments to what a backend takes: contiguous tensors of its device, premultiplied. Exceptions
// of libtorch pass through.
namespace gradwire::collectives {

// What a call with this tensor is recorded as.
OperationRecord record_of(Operation operation, const at::Tensor& tensor);

// One run of one operation.
struct RunContext {
  GroupBackend& backend;
  absl::Time deadline;
  // CUDA tensors go through the host's memory.
  bool stage_to_host = false;
  int rank = 0;
  int size = 1;
  // What a device still does of it; see GroupBackend::take_enqueued.
  std::unique_ptr<Enqueued> enqueued;
};

namespace operations {

using Tensors = std::vector<at::Tensor>;

absl::Status broadcast(RunContext& run, at::Tensor tensor, int root);
absl::Status reduce(RunContext& run, at::Tensor tensor, int root, const Reduction& op);
absl::Status all_reduce(RunContext& run, at::Tensor tensor, const Reduction& op);
absl::Status gather(RunContext& run, at::Tensor tensor, Tensors outputs, int root);
absl::Status all_gather(RunContext& run, at::Tensor tensor, Tensors outputs);
absl::Status scatter(RunContext& run, at::Tensor tensor, Tensors inputs, int root);
absl::Status reduce_scatter(RunContext& run, at::Tensor output, Tensors inputs, const Reduction& op);
absl::Status all_to_all(RunContext& run, Tensors outputs, Tensors inputs);
absl::Status all_gather_into_tensor(RunContext& run, at::Tensor output, at::Tensor input);
absl::Status reduce_scatter_tensor(RunContext& run, at::Tensor output, at::Tensor input, const Reduction& op);
// One entry of the splits for each rank.
absl::Status all_to_all_single(RunContext& run, at::Tensor output, at::Tensor input,
                               const std::vector<int64_t>& output_splits,
                               const std::vector<int64_t>& input_splits);

}  // namespace operations

// The tensors that a backend is given for those of the caller, and the way back.
class Staging {
 public:
  explicit Staging(RunContext& run) : run_(run) {}

  // A tensor with the values of `tensor`.
  at::Tensor source(const at::Tensor& tensor);
  // The same times the factor of `op`, if it has one.
  at::Tensor source(const at::Tensor& tensor, const Reduction& op);
  // A tensor whose values come to `tensor` by finish(); with `keeps`, with the values of `tensor` now.
  at::Tensor target(const at::Tensor& tensor, bool keeps);
  // With the values of `tensor` now, times the factor of `op`.
  at::Tensor target(const at::Tensor& tensor, const Reduction& op);
  std::vector<at::Tensor> sources(std::vector<at::Tensor> tensors);
  std::vector<at::Tensor> targets(std::vector<at::Tensor> tensors);

  // Takes what the backend has enqueued, and copies back unless `status` is an error, which it returns.
  absl::Status finish(absl::Status status);

 private:
  bool direct(const at::Tensor& tensor) const;
  at::Tensor temporary(const at::Tensor& tensor, bool with_values) const;
  at::Tensor multiplied(const at::Tensor& tensor, double factor) const;

  RunContext& run_;
  struct Copy {
    at::Tensor from;
    at::Tensor into;
  };
  absl::InlinedVector<Copy, 1> copies_;
};

// The values of `from`, which is contiguous, to the strided `into`.
void copy_into(const at::Tensor& from, const at::Tensor& into);

// Tells autograd that the values have changed.
inline void bump_version(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

// Whether a backend can use its memory as it is, device apart.
inline bool is_plain(const at::Tensor& tensor) {
  const c10::DispatchKeySet lazy({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  return tensor.is_contiguous() && !tensor.unsafeGetTensorImpl()->key_set().has_any(lazy);
}

}  // namespace gradwire::collectives
