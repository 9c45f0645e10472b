// The collectives with a tensor for each rank: grouped messages, or one flat tensor.
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/collectives/nccl/nccl_group.h"

namespace gradwire::collectives::nccl {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors with(Tensors list, const at::Tensor& tensor) {
  list.push_back(tensor);
  return list;
}

// The calls of one group of NCCL's, until one fails.
class Calls {
 public:
  Calls(ncclComm_t comm, cudaStream_t stream) : comm_(comm), stream_(stream) {}

  // Both sides leave out what is empty.
  void send(const at::Tensor& tensor, std::size_t peer) {
    if (tensor.nbytes() == 0 || failed()) return;
    result_ = ncclSend(tensor.data_ptr(), tensor.nbytes(), ncclUint8, static_cast<int>(peer), comm_, stream_);
  }
  void receive(const at::Tensor& tensor, std::size_t peer) {
    if (tensor.nbytes() == 0 || failed()) return;
    result_ = ncclRecv(tensor.data_ptr(), tensor.nbytes(), ncclUint8, static_cast<int>(peer), comm_, stream_);
  }
  ncclResult_t result() const { return result_; }

 private:
  bool failed() const { return result_ != ncclSuccess && result_ != ncclInProgress; }

  const ncclComm_t comm_;
  const cudaStream_t stream_;
  ncclResult_t result_ = ncclSuccess;
};

// Whether the tensors lie one behind the other in memory, so that the first one's address stands for all.
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

}  // namespace

absl::Status NcclGroup::gather(at::Tensor tensor, Tensors outputs, int root, absl::Time deadline) {
  return perform({.what = "gather",
                  .devices = {tensor.device()},
                  .tensors = with(outputs, tensor),
                  .body =
                      [&](std::size_t, ncclComm_t comm, cudaStream_t stream) {
                        Calls calls(comm, stream);
                        calls.send(tensor, static_cast<std::size_t>(root));
                        for (std::size_t i = 0; i < outputs.size(); ++i) calls.receive(outputs[i], i);
                        return calls.result();
                      }},
                 deadline);
}

absl::Status NcclGroup::scatter(at::Tensor tensor, Tensors inputs, int root, absl::Time deadline) {
  return perform({.what = "scatter",
                  .devices = {tensor.device()},
                  .tensors = with(inputs, tensor),
                  .body =
                      [&](std::size_t, ncclComm_t comm, cudaStream_t stream) {
                        Calls calls(comm, stream);
                        for (std::size_t i = 0; i < inputs.size(); ++i) calls.send(inputs[i], i);
                        calls.receive(tensor, static_cast<std::size_t>(root));
                        return calls.result();
                      }},
                 deadline);
}

absl::Status NcclGroup::all_to_all(Tensors outputs, Tensors inputs, absl::Time deadline) {
  Tensors all = outputs;
  all.insert(all.end(), inputs.begin(), inputs.end());
  return perform({.what = "all_to_all",
                  .devices = {outputs.front().device()},
                  .tensors = std::move(all),
                  .body =
                      [&](std::size_t, ncclComm_t comm, cudaStream_t stream) {
                        Calls calls(comm, stream);
                        for (std::size_t i = 0; i < inputs.size(); ++i) {
                          calls.send(inputs[i], i);
                          calls.receive(outputs[i], i);
                        }
                        return calls.result();
                      }},
                 deadline);
}

absl::Status NcclGroup::all_gather(at::Tensor tensor, Tensors outputs, absl::Time deadline) {
  const bool direct = adjacent(outputs);
  at::Tensor flat = outputs.front();
  return perform({.what = "all_gather",
                  .devices = {tensor.device()},
                  .tensors = with(outputs, tensor),
                  .before =
                      [&](std::size_t) {
                        if (!direct) flat = flat_like(tensor, outputs.size());
                      },
                  .after =
                      [&](std::size_t) {
                        for (std::size_t i = 0; i < outputs.size() && !direct; ++i) {
                          copy_values(part_of(flat, tensor, i), outputs[i]);
                        }
                      },
                  .body =
                      [&](std::size_t, ncclComm_t comm, cudaStream_t stream) {
                        return ncclAllGather(tensor.data_ptr(), flat.data_ptr(), tensor.nbytes(), ncclUint8,
                                             comm, stream);
                      }},
                 deadline);
}

absl::Status NcclGroup::reduce_scatter(at::Tensor output, Tensors inputs, const Reduction& op,
                                       absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(const Plan plan, nccl::plan(output.scalar_type(), op.op));
  const bool direct = adjacent(inputs) && !plan.widened;
  at::Tensor flat = inputs.front();
  at::Tensor into = output;
  return perform({.what = "reduce_scatter",
                  .devices = {output.device()},
                  .tensors = with(inputs, output),
                  .before =
                      [&](std::size_t) {
                        if (direct) return;
                        flat = flat_like(output, inputs.size());
                        for (std::size_t i = 0; i < inputs.size(); ++i) {
                          copy_values(inputs[i], part_of(flat, output, i));
                        }
                        flat = widened(flat, plan);
                        if (plan.widened) into = flat_like(flat, 1).narrow(0, 0, output.numel());
                      },
                  .after =
                      [&](std::size_t) {
                        if (plan.widened) copy_values(into.view(output.sizes()), output);
                      },
                  .body =
                      [&](std::size_t, ncclComm_t comm, cudaStream_t stream) {
                        return ncclReduceScatter(flat.data_ptr(), into.data_ptr(), count_of(output, plan),
                                                 type_of(plan), op_of(plan), comm, stream);
                      }},
                 deadline);
}

}  // namespace gradwire::collectives::nccl
