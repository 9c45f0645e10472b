#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/collectives/flight/operation.h"
#include "gradwire/collectives/group_backend.h"

// The operations with checked arguments. Each prepares the tensors for the backend (contiguous, on its
// device, multiplied by the factor of premul_sum), calls the backend, and copies the results back. Exceptions
// of libtorch pass through.
namespace gradwire::collectives {

// How many bytes the tensor's data has. Those of a sparse tensor are its indices and values. 0 if it is
// undefined.
int64_t data_bytes(const at::Tensor& tensor);

// The description of a call with this tensor.
OperationRecord record_of(Operation operation, const at::Tensor& tensor);
// The description of a call with these tensors, which must be the same on all ranks, in shape too.
OperationRecord record_of_list(Operation operation, const std::vector<at::Tensor>& tensors);
// The same description with a reduction, and whether it is premul_sum.
OperationRecord with_op(OperationRecord record, const Reduction& op);

// The types of devices whose tensors are copied to the memory of the host for the backend, and back.
class StagedDevices {
 public:
  void add(c10::DeviceType type) { bits_ |= bit(type); }
  bool contains(c10::DeviceType type) const { return (bits_ & bit(type)) != 0; }

 private:
  static uint64_t bit(c10::DeviceType type) { return uint64_t{1} << static_cast<unsigned>(type); }

  uint64_t bits_ = 0;
};
static_assert(c10::COMPILE_TIME_MAX_DEVICE_TYPES <= 64);

// The context of one run of one operation.
struct RunContext {
  GroupBackend& backend;
  absl::Time deadline;
  StagedDevices staged;
  int rank = 0;
  int size = 1;
  // The part of the operation that may still run on a device; see GroupBackend::take_enqueued.
  std::unique_ptr<Enqueued> enqueued;

  // Orders the current stream behind `enqueued`, for an operation of several steps.
  void order_behind_last_step() {
    if (enqueued != nullptr) enqueued->order_current_stream();
    enqueued = nullptr;
  }
};

// Whether the list is of tensors of which one has another shape than `like`.
bool has_other_shape(const std::vector<at::Tensor>& list, const at::Tensor& like);

namespace operations {

using Tensors = std::vector<at::Tensor>;

absl::Status broadcast(RunContext& run, at::Tensor tensor, int root);
absl::Status reduce(RunContext& run, at::Tensor tensor, int root, const Reduction& op);
absl::Status all_reduce(RunContext& run, at::Tensor tensor, const Reduction& op);
absl::Status gather(RunContext& run, at::Tensor tensor, Tensors outputs, int root);
absl::Status all_gather(RunContext& run, at::Tensor tensor, Tensors outputs);
// As all_gather; the ranks' tensors may have different shapes, and every rank's outputs[i] has the shape of
// rank i's tensor.
absl::Status all_gather_uneven(RunContext& run, at::Tensor tensor, Tensors outputs);
absl::Status scatter(RunContext& run, at::Tensor tensor, Tensors inputs, int root);
absl::Status reduce_scatter(RunContext& run, at::Tensor output, Tensors inputs, const Reduction& op);
absl::Status all_to_all(RunContext& run, Tensors outputs, Tensors inputs);
absl::Status all_gather_into_tensor(RunContext& run, at::Tensor output, at::Tensor input);
absl::Status reduce_scatter_tensor(RunContext& run, at::Tensor output, at::Tensor input, const Reduction& op);
// The splits have one entry for each rank.
absl::Status all_to_all_single(RunContext& run, at::Tensor output, at::Tensor input,
                               const std::vector<int64_t>& output_splits,
                               const std::vector<int64_t>& input_splits);

}  // namespace operations

// Prepares the tensors of one operation. The backend gets the caller's tensor where it can use it; otherwise
// it gets a temporary copy, and finish() copies the results back.
class Staging {
 public:
  explicit Staging(RunContext& run) : run_(run) {}

  // An input for the backend: a tensor with the values of `tensor`.
  at::Tensor source(at::Tensor tensor);
  // As above, multiplied by the factor of `op` if it has one.
  at::Tensor source(at::Tensor tensor, const Reduction& op);
  // An output for the backend; finish() copies its values to `tensor`. `keeps`: it starts with the values of
  // `tensor`; else its values are undefined.
  at::Tensor target(at::Tensor tensor, bool keeps);
  // An output that starts with the values of `tensor`, multiplied by the factor of `op` if it has one.
  at::Tensor target(at::Tensor tensor, const Reduction& op);
  // source() for each tensor.
  std::vector<at::Tensor> sources(std::vector<at::Tensor> tensors);
  // target() without values for each tensor.
  std::vector<at::Tensor> targets(std::vector<at::Tensor> tensors);

  // Takes the enqueued part of the operation from the backend, and copies the results back unless `status` is
  // an error. Returns `status`.
  absl::Status finish(absl::Status status);

 private:
  // Whether the backend can use the tensor itself.
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

// Copies the values of `from`, which is contiguous, to `into`, which may be strided.
void copy_into(const at::Tensor& from, const at::Tensor& into);

// Notifies autograd that the values have changed.
inline void bump_version(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

// Whether the tensor's memory holds its values in order, without a pending conjugation or negation. A backend
// for the tensor's device can then use the memory itself.
inline bool is_plain(const at::Tensor& tensor) {
  const c10::DispatchKeySet lazy({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  return tensor.is_contiguous() && !tensor.unsafeGetTensorImpl()->key_set().has_any(lazy);
}

}  // namespace gradwire::collectives
