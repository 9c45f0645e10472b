#include "gradwire/collectives/nccl/nccl_collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/narrow.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/collectives/nccl/nccl_types.h"
#include "gradwire/collectives/operations/operations.h"

namespace gradwire::collectives::nccl {
namespace {

using Tensors = std::vector<at::Tensor>;

std::vector<c10::Device> devices_of(const Tensors& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) devices.push_back(tensor.device());
  return devices;
}

// The plan's type, operation and number of elements, as arguments for NCCL.
ncclDataType_t type_of(const Plan& plan) { return static_cast<ncclDataType_t>(plan.type); }
ncclRedOp_t op_of(const Plan& plan) { return static_cast<ncclRedOp_t>(plan.op); }
std::size_t count_of(const at::Tensor& tensor, const Plan& plan) {
  return static_cast<std::size_t>(tensor.numel() * plan.per_element);
}

// The tensor, or a copy of its values as int32 if the plan needs that.
at::Tensor widened(const at::Tensor& tensor, const Plan& plan) {
  const c10::NoGradGuard no_grad;
  return plan.widened ? tensor.detach().to(at::kInt) : tensor;
}

// An uninitialised tensor of one dimension with `parts` times the elements of `part`.
at::Tensor flat_like(const at::Tensor& part, std::size_t parts) {
  const c10::NoGradGuard no_grad;
  return at::empty({static_cast<int64_t>(parts) * part.numel()}, part.options().requires_grad(false));
}

// A view of the part at `index` of `flat`, in the shape of `part`.
at::Tensor part_of(const at::Tensor& flat, const at::Tensor& part, std::size_t index) {
  const c10::NoGradGuard no_grad;
  return at::narrow(flat, 0, static_cast<int64_t>(index) * part.numel(), part.numel()).view(part.sizes());
}

// Whether the tensors are adjacent in memory, so NCCL can use the address of the first one for all of them.
bool adjacent(const Tensors& tensors) {
  const char* expected = static_cast<const char*>(tensors.front().const_data_ptr());
  for (const at::Tensor& tensor : tensors) {
    if (tensor.const_data_ptr() != expected ||
        tensor.storage().data_ptr() != tensors.front().storage().data_ptr()) {
      return false;
    }
    expected += tensor.nbytes();
  }
  return true;
}

// Whether NCCL can gather `tensor` directly into `list`, at index `slot`. NCCL allows that the input is part
// of the output only if it is exactly this rank's slot.
bool takes_directly(const Tensors& list, const at::Tensor& tensor, std::size_t slot) {
  return adjacent(list) && (tensor.storage().data_ptr() != list.front().storage().data_ptr() ||
                            tensor.const_data_ptr() == list[slot].const_data_ptr());
}

}  // namespace

absl::Status NcclCollectives::broadcast(Tensors tensors, int root, absl::Time deadline) {
  const int first = root * static_cast<int>(tensors.size());
  return perform({.what = "broadcast", .devices = devices_of(tensors), .tensors = tensors}, deadline,
                 [&](std::size_t i, ncclComm_t comm, cudaStream_t stream) {
                   return ncclBroadcast(tensors[i].data_ptr(), tensors[i].data_ptr(), tensors[i].nbytes(),
                                        ncclUint8, first, comm, stream);
                 });
}

absl::Status NcclCollectives::all_reduce(Tensors tensors, const Reduction& op, absl::Time deadline) {
  return reduce_to("all_reduce", tensors, std::nullopt, op, deadline);
}

absl::Status NcclCollectives::reduce(Tensors tensors, int root, const Reduction& op, absl::Time deadline) {
  return reduce_to("reduce", tensors, root, op, deadline);
}

absl::Status NcclCollectives::reduce_to(const char* what, const Tensors& tensors, std::optional<int> root,
                                        const Reduction& op, absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(const Plan plan, nccl::plan(tensors.front().scalar_type(), op.op));
  if (plan.combined) return combine_all(what, tensors, root, op, deadline);
  Tensors values = tensors;
  // prepare and put_back run in the stream of the operation, before and after it, so that no thread waits for
  // the device.
  const auto prepare = [&](std::size_t i) {
    const c10::NoGradGuard no_grad;
    values[i] = op.multiplies ? at::mul(tensors[i].detach(), op.factor) : widened(tensors[i], plan);
  };
  const auto put_back = [&](std::size_t i) {
    const bool written = !root.has_value() || (i == 0 && *root == context_.rank);
    if (written && !values[i].is_same(tensors[i])) copy_into(values[i], tensors[i]);
  };
  return perform({.what = what,
                  .devices = devices_of(tensors),
                  .tensors = tensors,
                  .before = prepare,
                  .after = put_back},
                 deadline, [&](std::size_t i, ncclComm_t comm, cudaStream_t stream) {
                   void* const data = values[i].data_ptr();
                   const std::size_t count = count_of(values[i], plan);
                   if (!root.has_value()) {
                     return ncclAllReduce(data, data, count, type_of(plan), op_of(plan), comm, stream);
                   }
                   // NCCL writes the result only on the root.
                   return ncclReduce(data, data, count, type_of(plan), op_of(plan),
                                     *root * static_cast<int>(tensors.size()), comm, stream);
                 });
}

absl::Status NcclCollectives::gather_parts(const char* what, const std::vector<Tensors>& outputs,
                                           const Tensors& tensors, absl::Time deadline) {
  Tensors used = tensors;
  Tensors flat;
  std::vector<bool> direct;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensors& list = outputs[i];
    used.insert(used.end(), list.begin(), list.end());
    flat.push_back(list.front());
    const std::size_t slot = static_cast<std::size_t>(context_.rank) * tensors.size() + i;
    direct.push_back(takes_directly(list, tensors[i], slot));
  }
  const auto prepare = [&](std::size_t i) {
    if (!direct[i]) flat[i] = flat_like(tensors[i], outputs[i].size());
  };
  const auto put_back = [&](std::size_t i) {
    for (std::size_t j = 0; j < outputs[i].size() && !direct[i]; ++j) {
      copy_into(part_of(flat[i], tensors[i], j), outputs[i][j]);
    }
  };
  return perform({.what = what,
                  .devices = devices_of(tensors),
                  .tensors = std::move(used),
                  .before = prepare,
                  .after = put_back},
                 deadline, [&](std::size_t i, ncclComm_t comm, cudaStream_t stream) {
                   return ncclAllGather(tensors[i].data_ptr(), flat[i].data_ptr(), tensors[i].nbytes(),
                                        ncclUint8, comm, stream);
                 });
}

absl::Status NcclCollectives::reduce_parts(const char* what, const at::Tensor& output, const Tensors& inputs,
                                           const Reduction& op, absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(const Plan plan, nccl::plan(output.scalar_type(), op.op));
  if (plan.combined) return combine_parts(what, output, inputs, op, deadline);
  // Widening needs all parts in one tensor.
  const bool direct = adjacent(inputs) && (!plan.widened || inputs.size() == 1);
  at::Tensor flat = inputs.front();
  at::Tensor into = output;
  const auto prepare = [&](std::size_t) {
    if (!direct) {
      flat = flat_like(output, inputs.size());
      for (std::size_t i = 0; i < inputs.size(); ++i) copy_into(inputs[i], part_of(flat, output, i));
    }
    flat = widened(flat, plan);
    if (plan.widened) into = flat_like(flat, 1).narrow(0, 0, output.numel());
  };
  const auto put_back = [&](std::size_t) {
    if (plan.widened) copy_into(into, output);
  };
  Tensors used = inputs;
  used.push_back(output);
  return perform({.what = what,
                  .devices = {output.device()},
                  .tensors = std::move(used),
                  .before = prepare,
                  .after = put_back},
                 deadline, [&](std::size_t, ncclComm_t comm, cudaStream_t stream) {
                   return ncclReduceScatter(flat.data_ptr(), into.data_ptr(), count_of(output, plan),
                                            type_of(plan), op_of(plan), comm, stream);
                 });
}

}  // namespace gradwire::collectives::nccl
