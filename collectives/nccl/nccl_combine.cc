// The part of NcclCollectives for reductions that NCCL does not have: the bitwise ones. The ranks exchange
// the values, and each rank combines its share with libtorch's operators. With P ranks of the communicator:
//   1. Divide the tensor into P shares. Each rank sends share p to rank p, and gets its own share of all
//   ranks.
//   2. Each rank combines the P parts that it has.
//   3. An all-gather distributes the results. Each rank moves about as many bytes as in NCCL's own
//   all-reduce.
// A reduce-scatter ends after step 2.

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/narrow.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "gradwire/collectives/checks/reduction_meaning.h"
#include "gradwire/collectives/nccl/nccl_collectives.h"
#include "gradwire/collectives/operations/operations.h"

namespace gradwire::collectives::nccl {
namespace {

using Tensors = std::vector<at::Tensor>;

// The part at `index` of a tensor of one dimension.
at::Tensor share(const at::Tensor& flat, int64_t elements, int64_t index) {
  return at::narrow(flat, 0, index * elements, elements);
}

// Sends share p of `from` to rank p, and receives the share of rank p into share p of `into`.
ncclResult_t exchange(const at::Tensor& from, const at::Tensor& into, int ranks, ncclComm_t comm,
                      cudaStream_t stream) {
  const std::size_t bytes = from.nbytes() / static_cast<std::size_t>(ranks);
  if (bytes == 0) return ncclSuccess;
  const char* const source = static_cast<const char*>(from.const_data_ptr());
  char* const target = static_cast<char*>(into.mutable_data_ptr());
  for (int rank = 0; rank < ranks; ++rank) {
    const std::size_t offset = static_cast<std::size_t>(rank) * bytes;
    for (const ncclResult_t result : {ncclSend(source + offset, bytes, ncclUint8, rank, comm, stream),
                                      ncclRecv(target + offset, bytes, ncclUint8, rank, comm, stream)}) {
      if (result != ncclSuccess && result != ncclInProgress) return result;
    }
  }
  return ncclSuccess;
}

// Combines the shares of `all`, in the order of the ranks, into the first one, and returns that.
at::Tensor combined(const at::Tensor& all, int ranks, ReduceOp op) {
  const int64_t elements = all.numel() / ranks;
  at::Tensor sum = share(all, elements, 0);
  for (int rank = 1; rank < ranks; ++rank) combine_tensors(op, sum, sum, share(all, elements, rank));
  return sum;
}

}  // namespace

absl::Status NcclCollectives::combine_all(const char* what, const Tensors& tensors, std::optional<int> root,
                                          const Reduction& op, absl::Time deadline) {
  const int ranks = context_.size * static_cast<int>(tensors.size());
  const int64_t count = tensors.front().numel();
  const int64_t each = (count + ranks - 1) / ranks;
  Tensors sent(tensors.size()), got(tensors.size()), own(tensors.size());
  const auto prepare = [&](std::size_t i) {
    const c10::NoGradGuard no_grad;
    const at::TensorOptions options = tensors[i].options().requires_grad(false);
    // The last shares may be longer than the tensor; the zeros behind it are not copied back.
    sent[i] = at::zeros({ranks * each}, options);
    copy_into(tensors[i].detach().view({-1}), share(sent[i], count, 0));
    got[i] = at::empty_like(sent[i]);
  };
  const auto combine = [&](std::size_t i) {
    const c10::NoGradGuard no_grad;
    own[i] = combined(got[i], ranks, op.op);
  };
  const auto put_back = [&](std::size_t i) {
    const c10::NoGradGuard no_grad;
    const bool written = !root.has_value() || (i == 0 && *root == context_.rank);
    if (written) copy_into(share(sent[i], count, 0), tensors[i]);
  };
  Call call{.what = what,
            .devices = {},
            .tensors = tensors,
            .before = prepare,
            .after = put_back,
            .between = combine,
            .second = [&](std::size_t i, ncclComm_t comm, cudaStream_t stream) {
              return ncclAllGather(own[i].const_data_ptr(), sent[i].mutable_data_ptr(), own[i].nbytes(),
                                   ncclUint8, comm, stream);
            }};
  for (const at::Tensor& tensor : tensors) call.devices.push_back(tensor.device());
  return perform(call, deadline, [&](std::size_t i, ncclComm_t comm, cudaStream_t stream) {
    return exchange(sent[i], got[i], ranks, comm, stream);
  });
}

absl::Status NcclCollectives::combine_parts(const char* what, const at::Tensor& output, const Tensors& inputs,
                                            const Reduction& op, absl::Time deadline) {
  const int ranks = context_.size;
  at::Tensor sent, got;
  const auto prepare = [&](std::size_t) {
    const c10::NoGradGuard no_grad;
    sent = at::empty({ranks * output.numel()}, output.options().requires_grad(false));
    const int64_t each = inputs.front().numel();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      copy_into(inputs[i].detach().view({-1}), share(sent, each, static_cast<int64_t>(i)));
    }
    got = at::empty_like(sent);
  };
  const auto put_back = [&](std::size_t) {
    const c10::NoGradGuard no_grad;
    copy_into(combined(got, ranks, op.op), output);
  };
  Tensors used = inputs;
  used.push_back(output);
  return perform({.what = what,
                  .devices = {output.device()},
                  .tensors = std::move(used),
                  .before = prepare,
                  .after = put_back},
                 deadline, [&](std::size_t, ncclComm_t comm, cudaStream_t stream) {
                   return exchange(sent, got, ranks, comm, stream);
                 });
}

}  // namespace gradwire::collectives::nccl
