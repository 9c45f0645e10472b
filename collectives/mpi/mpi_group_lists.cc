// The collectives that have one tensor for each rank.
#include <ATen/ops/div.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/collectives/checks/reduction_meaning.h"
#include "gradwire/collectives/mpi/mpi_group.h"
#include "gradwire/collectives/mpi/mpi_lists.h"
#include "gradwire/collectives/mpi/mpi_types.h"

namespace gradwire::collectives {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors with(Tensors list, const at::Tensor& tensor) {
  list.push_back(tensor);
  return list;
}

}  // namespace

absl::Status MpiGroup::gather(at::Tensor tensor, Tensors outputs, int root, absl::Time deadline) {
  return collective("gather", deadline,
                    [&](MpiCollective& call) { return gather(call, tensor, outputs, root); });
}

absl::Status MpiGroup::all_gather(at::Tensor tensor, Tensors outputs, absl::Time deadline) {
  return collective("all_gather", deadline,
                    [&](MpiCollective& call) { return gather(call, tensor, outputs, -1); });
}

absl::Status MpiGroup::gather(MpiCollective& call, const at::Tensor& tensor, const Tensors& outputs,
                              int root) {
  synchronize(tensor);
  const bool receives = root < 0 || root == member_->rank();
  const auto total = static_cast<int64_t>(tensor.nbytes());
  // A piece of every rank together must fit a block, because the buffer has one part for each rank.
  const int64_t most = std::max<int64_t>(1, member_->block() / member_->size());
  // MPI uses the list itself if it is one buffer, in one call. MPI forbids input and output to overlap.
  const bool direct = receives && total <= most && is_one_buffer(outputs) && !overlaps(tensor, outputs);
  for (int64_t offset = 0; offset < total; offset += most) {
    const int64_t bytes = std::min(most, total - offset);
    const int count = static_cast<int>(bytes);
    Tensors used = with(outputs, tensor);
    char* into = nullptr;
    if (direct) {
      into = bytes_of(outputs[0]);
    } else if (receives) {
      used.push_back(make_buffer(member_->size(), bytes, tensor));
      into = bytes_of(used.back());
    }
    GRADWIRE_RETURN_IF_ERROR(call.run(used, [&](MPI_Request* request) {
      char* const from = bytes_of(tensor, offset);
      if (root < 0) {
        return MPI_Iallgather(from, count, MPI_BYTE, into, count, MPI_BYTE, member_->collectives(), request);
      }
      return MPI_Igather(from, count, MPI_BYTE, into, count, MPI_BYTE, root, member_->collectives(), request);
    }));
    if (receives && !direct) unpack(used.back(), offset, bytes, outputs);
  }
  return absl::OkStatus();
}

absl::Status MpiGroup::scatter(at::Tensor tensor, Tensors inputs, int root, absl::Time deadline) {
  return collective("scatter", deadline, [&](MpiCollective& call) -> absl::Status {
    const bool sends = root == member_->rank();
    const auto total = static_cast<int64_t>(tensor.nbytes());
    const int64_t most = std::max<int64_t>(1, member_->block() / member_->size());
    const bool direct = sends && total <= most && is_one_buffer(inputs) && !overlaps(tensor, inputs);
    for (int64_t offset = 0; offset < total; offset += most) {
      const int64_t bytes = std::min(most, total - offset);
      const int count = static_cast<int>(bytes);
      Tensors used = with(inputs, tensor);
      char* from = nullptr;
      if (direct) {
        from = bytes_of(inputs[0]);
      } else if (sends) {
        used.push_back(make_buffer(member_->size(), bytes, tensor));
        pack(inputs, offset, bytes, used.back());
        from = bytes_of(used.back());
      }
      synchronize(tensor);
      GRADWIRE_RETURN_IF_ERROR(call.run(used, [&](MPI_Request* request) {
        return MPI_Iscatter(from, count, MPI_BYTE, bytes_of(tensor, offset), count, MPI_BYTE, root,
                            member_->collectives(), request);
      }));
    }
    return absl::OkStatus();
  });
}

absl::Status MpiGroup::reduce_scatter(at::Tensor output, Tensors inputs, const Reduction& op,
                                      absl::Time deadline) {
  return collective("reduce_scatter", deadline,
                    [&](MpiCollective& call) { return reduce_scatter(call, output, inputs, op); });
}

absl::Status MpiGroup::reduce_scatter(MpiCollective& call, const at::Tensor& output, const Tensors& inputs,
                                      const Reduction& op) {
  if (combines_in_float(op.op, output.scalar_type(), member_->size())) {
    const c10::InferenceMode no_autograd;
    Tensors wide_inputs;
    for (const at::Tensor& input : inputs)
      wide_inputs.push_back(input.to(at::TensorOptions().device(at::kCPU).dtype(at::kFloat)));
    const at::Tensor wide = at::empty_like(output, at::TensorOptions().device(at::kCPU).dtype(at::kFloat));
    GRADWIRE_RETURN_IF_ERROR(reduce_scatter(call, wide, wide_inputs, op));
    at::Tensor(output).copy_(wide);
    return absl::OkStatus();
  }
  GRADWIRE_ASSIGN_OR_RETURN(const MpiReduction how,
                            mpi_reduction(member_->runtime(), output.scalar_type(), op.op));
  const c10::NoGradGuard no_grad;
  const bool on_host = output.is_cpu();
  // MPI reduces in the host's memory.
  at::Tensor host = on_host ? output : at::empty_like(output, at::kCPU);
  const auto size = static_cast<int64_t>(host.element_size());
  const auto total = static_cast<int64_t>(host.nbytes());
  const int64_t most = std::max<int64_t>(1, member_->block() / member_->size() / size) * size;
  const bool direct = on_host && total <= most && is_one_buffer(inputs) && !overlaps(output, inputs);
  for (int64_t offset = 0; offset < total; offset += most) {
    const int64_t bytes = std::min(most, total - offset);
    Tensors used = with(inputs, host);
    if (!direct) {
      used.push_back(make_buffer(member_->size(), bytes, host));
      pack(inputs, offset, bytes, used.back());
    }
    char* const from = direct ? bytes_of(inputs[0]) : bytes_of(used.back());
    GRADWIRE_RETURN_IF_ERROR(call.run(used, [&](MPI_Request* request) {
      return MPI_Ireduce_scatter_block(from, bytes_of(host, offset), static_cast<int>(bytes / size), how.type,
                                       how.op, member_->collectives(), request);
    }));
  }
  if (op.op == ReduceOp::kAvg) host.div_(member_->size());
  if (!on_host) at::Tensor(output).copy_(host);
  return absl::OkStatus();
}

absl::Status MpiGroup::all_to_all(Tensors outputs, Tensors inputs, absl::Time deadline) {
  return collective("all_to_all", deadline, [&](MpiCollective& call) -> absl::Status {
    // The sizes may differ between pairs of ranks, and a rank knows only the sizes of its own pairs. So the
    // ranks cannot agree on a division into pieces: each pair uses one message.
    Tensors used = outputs;
    used.insert(used.end(), inputs.begin(), inputs.end());
    call.keep(std::move(used));
    const int size = member_->size();
    const int rank = member_->rank();
    for (const at::Tensor& input : inputs) synchronize(input);
    const auto begin = [&](bool sends, const at::Tensor& tensor, int peer) {
      const MpiMessage message{.comm = member_->collectives(),
                               .sends = sends,
                               .data = tensor.data_ptr(),
                               .bytes = static_cast<int64_t>(tensor.nbytes()),
                               .peer = peer};
      return call.begin([&](MPI_Request* request) {
        return start(member_->runtime(), message, member_->block(), request);
      });
    };
    const auto source = [&](int step) { return static_cast<std::size_t>((rank + size - step) % size); };
    for (int step = 1; step < size; ++step) {
      const std::size_t src = source(step);
      GRADWIRE_RETURN_IF_ERROR(begin(false, outputs[src], static_cast<int>(src)));
    }
    for (int step = 1; step < size; ++step) {
      const int dst = (rank + step) % size;
      GRADWIRE_RETURN_IF_ERROR(begin(true, inputs[static_cast<std::size_t>(dst)], dst));
    }
    // The block of this rank for itself is copied, not sent.
    const at::Tensor& to_self = inputs[static_cast<std::size_t>(rank)];
    const at::Tensor& from_self = outputs[static_cast<std::size_t>(rank)];
    if (to_self.nbytes() != from_self.nbytes()) {
      return call.break_off(absl::InvalidArgumentError(
          absl::StrCat("all_to_all: size mismatch on rank ", rank, ": it sends itself ", to_self.nbytes(),
                       " bytes, but its output has ", from_self.nbytes())));
    }
    if (to_self.numel() > 0) copy_bytes(to_self, from_self);
    GRADWIRE_RETURN_IF_ERROR(call.finish());
    for (int step = 1; step < size; ++step) {
      const std::size_t src = source(step);
      MPI_Count bytes = 0;
      // The receives were begun first, in the order of `step`, so their statuses come first.
      MPI_Get_elements_x(&call.statuses()[static_cast<std::size_t>(step - 1)], MPI_BYTE, &bytes);
      if (bytes != static_cast<MPI_Count>(outputs[src].nbytes())) {
        return absl::InvalidArgumentError(absl::StrCat("all_to_all: size mismatch: rank ", src, " sent ",
                                                       bytes, " bytes, but its output on this rank has ",
                                                       outputs[src].nbytes()));
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace gradwire::collectives
