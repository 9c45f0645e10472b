// The collectives that NCCL has, and the barrier.
#include <ATen/ops/empty.h>
#include <ATen/ops/narrow.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAFunctions.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/nccl/nccl_group.h"

namespace gradwire::collectives::nccl {

void copy_values(const at::Tensor& from, const at::Tensor& into) {
  const c10::InferenceMode inference(into.is_inference());
  const c10::NoGradGuard no_grad;
  into.copy_(from);
}

at::Tensor widened(const at::Tensor& tensor, const Plan& plan) {
  const c10::NoGradGuard no_grad;
  return plan.widened ? tensor.detach().to(at::kInt) : tensor;
}

at::Tensor flat_like(const at::Tensor& part, std::size_t parts) {
  const c10::NoGradGuard no_grad;
  return at::empty({static_cast<int64_t>(parts) * part.numel()}, part.options().requires_grad(false));
}

at::Tensor part_of(const at::Tensor& flat, const at::Tensor& part, std::size_t index) {
  const c10::NoGradGuard no_grad;
  return at::narrow(flat, 0, static_cast<int64_t>(index) * part.numel(), part.numel()).view(part.sizes());
}

absl::Status NcclGroup::broadcast(at::Tensor tensor, int root, absl::Time deadline) {
  return perform({.what = "broadcast",
                  .devices = {tensor.device()},
                  .tensors = {tensor},
                  .body =
                      [&](std::size_t, ncclComm_t comm, cudaStream_t stream) {
                        return ncclBroadcast(tensor.data_ptr(), tensor.data_ptr(), tensor.nbytes(), ncclUint8,
                                             root, comm, stream);
                      }},
                 deadline);
}

absl::Status NcclGroup::reduce(at::Tensor tensor, int root, const Reduction& op, absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(const Plan plan, nccl::plan(tensor.scalar_type(), op.op));
  at::Tensor values = tensor;
  return perform({.what = "reduce",
                  .devices = {tensor.device()},
                  .tensors = {tensor},
                  .before = [&](std::size_t) { values = widened(tensor, plan); },
                  .after =
                      [&](std::size_t) {
                        if (plan.widened && rank() == root) copy_values(values, tensor);
                      },
                  .body =
                      [&](std::size_t, ncclComm_t comm, cudaStream_t stream) {
                        // Only the root's is written to.
                        return ncclReduce(values.data_ptr(), values.data_ptr(), count_of(values, plan),
                                          type_of(plan), op_of(plan), root, comm, stream);
                      }},
                 deadline);
}

absl::Status NcclGroup::all_reduce(at::Tensor tensor, const Reduction& op, absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(const Plan plan, nccl::plan(tensor.scalar_type(), op.op));
  at::Tensor values = tensor;
  return perform({.what = "all_reduce",
                  .devices = {tensor.device()},
                  .tensors = {tensor},
                  .before = [&](std::size_t) { values = widened(tensor, plan); },
                  .after =
                      [&](std::size_t) {
                        if (plan.widened) copy_values(values, tensor);
                      },
                  .body =
                      [&](std::size_t, ncclComm_t comm, cudaStream_t stream) {
                        return ncclAllReduce(values.data_ptr(), values.data_ptr(), count_of(values, plan),
                                             type_of(plan), op_of(plan), comm, stream);
                      }},
                 deadline);
}

absl::Status NcclGroup::all_gather_into_tensor(at::Tensor output, at::Tensor input, int size,
                                               absl::Time deadline) {
  return perform({.what = "all_gather_into_tensor",
                  .devices = {input.device()},
                  .tensors = {input, output},
                  .body =
                      [&](std::size_t, ncclComm_t comm, cudaStream_t stream) {
                        return ncclAllGather(input.data_ptr(), output.data_ptr(), input.nbytes(), ncclUint8,
                                             comm, stream);
                      }},
                 deadline);
}

absl::Status NcclGroup::reduce_scatter_tensor(at::Tensor output, at::Tensor input, const Reduction& op,
                                              int size, absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(const Plan plan, nccl::plan(output.scalar_type(), op.op));
  at::Tensor from = input;
  at::Tensor into = output;
  return perform({.what = "reduce_scatter_tensor",
                  .devices = {output.device()},
                  .tensors = {input, output},
                  .before =
                      [&](std::size_t) {
                        if (!plan.widened) return;
                        from = widened(input, plan);
                        into = flat_like(from, 1).narrow(0, 0, output.numel());
                      },
                  .after =
                      [&](std::size_t) {
                        if (plan.widened) copy_values(into.view(output.sizes()), output);
                      },
                  .body =
                      [&](std::size_t, ncclComm_t comm, cudaStream_t stream) {
                        return ncclReduceScatter(from.data_ptr(), into.data_ptr(), count_of(output, plan),
                                                 type_of(plan), op_of(plan), comm, stream);
                      }},
                 deadline);
}

absl::Status NcclGroup::barrier_on(const std::vector<int>& device_ids, absl::Time deadline) {
  if (device_ids.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("barrier: ", device_ids.size(), " devices; nccl takes one"));
  }
  int index = device_ids.empty() ? context_.device_id : device_ids[0];
  c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  if (index < 0) {
    MutexLock lock(mutex_);
    device =
        single_ != nullptr ? single_->devices()[0] : c10::Device(c10::kCUDA, c10::cuda::current_device());
  } else if (index >= c10::cuda::device_count()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "barrier: there is no cuda:", index, "; this process sees ", c10::cuda::device_count(), " GPUs"));
  }
  at::Tensor token;
  return perform({.what = "barrier",
                  .devices = {device},
                  .before =
                      [&](std::size_t) {
                        const c10::InferenceMode ordinary(false);
                        token = at::zeros({1}, at::TensorOptions().dtype(at::kInt).device(device));
                      },
                  .body =
                      [&](std::size_t, ncclComm_t comm, cudaStream_t stream) {
                        return ncclAllReduce(token.data_ptr(), token.data_ptr(), 1, ncclInt32, ncclSum, comm,
                                             stream);
                      },
                  .blocks = true},
                 deadline);
}

}  // namespace gradwire::collectives::nccl
