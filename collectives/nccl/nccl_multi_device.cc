// Several devices for each rank: rank r of the group has the communicator's ranks r * devices, r * devices + 1, ...
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/collectives/nccl/nccl_group.h"

namespace gradwire::collectives::nccl {
namespace {

using Tensors = std::vector<at::Tensor>;

std::vector<c10::Device> devices_of(const Tensors& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) devices.push_back(tensor.device());
  return devices;
}

class NcclMultiDevice final : public MultiDevice {
 public:
  explicit NcclMultiDevice(NcclGroup& group) : group_(group) {}

  absl::Status broadcast(Tensors tensors, int root, absl::Time deadline) override {
    const int first = root * static_cast<int>(tensors.size());
    return group_.perform({.what = "broadcast_multigpu",
                           .devices = devices_of(tensors),
                           .tensors = tensors,
                           .body =
                               [&](std::size_t i, ncclComm_t comm, cudaStream_t stream) {
                                 return ncclBroadcast(tensors[i].data_ptr(), tensors[i].data_ptr(),
                                                      tensors[i].nbytes(), ncclUint8, first, comm, stream);
                               }},
                          deadline);
  }

  absl::Status all_reduce(Tensors tensors, const Reduction& op, absl::Time deadline) override {
    GRADWIRE_ASSIGN_OR_RETURN(const Plan plan, plan_of(tensors, op));
    Tensors values = tensors;
    return group_.perform({.what = "all_reduce_multigpu",
                           .devices = devices_of(tensors),
                           .tensors = tensors,
                           .before = [&](std::size_t i) { values[i] = prepared(tensors[i], op, plan); },
                           .after = [&](std::size_t i) { put_back(values[i], tensors[i]); },
                           .body =
                               [&](std::size_t i, ncclComm_t comm, cudaStream_t stream) {
                                 return ncclAllReduce(values[i].data_ptr(), values[i].data_ptr(),
                                                      count_of(values[i], plan), type_of(plan), op_of(plan),
                                                      comm, stream);
                               }},
                          deadline);
  }

  absl::Status reduce(Tensors tensors, int root, const Reduction& op, absl::Time deadline) override {
    GRADWIRE_ASSIGN_OR_RETURN(const Plan plan, plan_of(tensors, op));
    const int first = root * static_cast<int>(tensors.size());
    Tensors values = tensors;
    return group_.perform({.what = "reduce_multigpu",
                           .devices = devices_of(tensors),
                           .tensors = tensors,
                           .before = [&](std::size_t i) { values[i] = prepared(tensors[i], op, plan); },
                           .after =
                               [&](std::size_t i) {
                                 if (i == 0 && group_.rank() == root) put_back(values[i], tensors[i]);
                               },
                           .body =
                               [&](std::size_t i, ncclComm_t comm, cudaStream_t stream) {
                                 return ncclReduce(values[i].data_ptr(), values[i].data_ptr(),
                                                   count_of(values[i], plan), type_of(plan), op_of(plan),
                                                   first, comm, stream);
                               }},
                          deadline);
  }

  absl::Status all_gather(std::vector<Tensors> outputs, Tensors tensors, absl::Time deadline) override {
    Tensors all = tensors;
    for (const Tensors& list : outputs) all.insert(all.end(), list.begin(), list.end());
    Tensors flat(tensors.size());
    return group_.perform(
        {.what = "all_gather_multigpu",
         .devices = devices_of(tensors),
         .tensors = std::move(all),
         .before = [&](std::size_t i) { flat[i] = flat_like(tensors[i], outputs[i].size()); },
         .after =
             [&](std::size_t i) {
               for (std::size_t j = 0; j < outputs[i].size(); ++j) {
                 copy_values(part_of(flat[i], tensors[i], j), outputs[i][j]);
               }
             },
         .body =
             [&](std::size_t i, ncclComm_t comm, cudaStream_t stream) {
               return ncclAllGather(tensors[i].data_ptr(), flat[i].data_ptr(), tensors[i].nbytes(), ncclUint8,
                                    comm, stream);
             }},
        deadline);
  }

 private:
  static absl::StatusOr<Plan> plan_of(const Tensors& tensors, const Reduction& op) {
    return plan(tensors.front().scalar_type(), op.op);
  }

  // The caller has not multiplied in these forms.
  static at::Tensor prepared(const at::Tensor& tensor, const Reduction& op, const Plan& plan) {
    const c10::NoGradGuard no_grad;
    return op.multiplies ? at::mul(tensor.detach(), op.factor) : widened(tensor, plan);
  }

  static void put_back(const at::Tensor& values, const at::Tensor& tensor) {
    if (!values.is_same(tensor)) copy_values(values, tensor);
  }

  NcclGroup& group_;
};

}  // namespace

std::unique_ptr<MultiDevice> make_multi_device(NcclGroup& group) {
  return std::make_unique<NcclMultiDevice>(group);
}

}  // namespace gradwire::collectives::nccl
