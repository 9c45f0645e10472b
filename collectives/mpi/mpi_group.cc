#include "gradwire/collectives/mpi/mpi_group.h"

#include <ATen/ops/div.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "gradwire/collectives/checks/reduction_meaning.h"
#include "gradwire/collectives/mpi/mpi_lists.h"
#include "gradwire/collectives/mpi/mpi_types.h"

namespace gradwire::collectives {

MpiGroup::~MpiGroup() {
  // If the group is broken, its error has already been reported to the other members.
  if (member_->leave()) member_->witness().report_leaving(progress_.finished.load(), "");
}

void MpiGroup::abort(const absl::Status& reason) {
  if (member_->broken()) return;
  (void)member_->break_with(reason);
  member_->witness().report_leaving(progress_.finished.load(), reason.message());
}

Future<void> MpiGroup::send(at::Tensor tensor, int dst, int tag, absl::Time deadline) {
  return messages_.send(std::move(tensor), dst, tag, deadline);
}

Future<int> MpiGroup::receive(at::Tensor tensor, int src, int tag, absl::Time deadline) {
  return messages_.receive(std::move(tensor), src, tag, deadline);
}

absl::Status MpiGroup::barrier(absl::Time deadline) {
  return collective("barrier", deadline, [&](MpiCollective& call) {
    return call.run({}, [&](MPI_Request* request) { return MPI_Ibarrier(member_->collectives(), request); });
  });
}

absl::Status MpiGroup::broadcast(at::Tensor tensor, int root, absl::Time deadline) {
  return collective("broadcast", deadline, [&](MpiCollective& call) -> absl::Status {
    synchronize(tensor);
    const auto total = static_cast<int64_t>(tensor.nbytes());
    for (int64_t offset = 0; offset < total; offset += member_->block()) {
      const int64_t bytes = std::min(member_->block(), total - offset);
      GRADWIRE_RETURN_IF_ERROR(call.run({tensor}, [&](MPI_Request* request) {
        return MPI_Ibcast(bytes_of(tensor, offset), static_cast<int>(bytes), MPI_BYTE, root,
                          member_->collectives(), request);
      }));
    }
    return absl::OkStatus();
  });
}

absl::Status MpiGroup::reduce(at::Tensor tensor, int root, const Reduction& op, absl::Time deadline) {
  return collective("reduce", deadline, [&](MpiCollective& call) { return reduce(call, tensor, root, op); });
}

absl::Status MpiGroup::all_reduce(at::Tensor tensor, const Reduction& op, absl::Time deadline) {
  return collective("all_reduce", deadline,
                    [&](MpiCollective& call) { return reduce(call, tensor, -1, op); });
}

absl::Status MpiGroup::reduce(MpiCollective& call, const at::Tensor& tensor, int root, const Reduction& op) {
  const bool result = root < 0 || root == member_->rank();
  if (combines_in_float(op.op, tensor.scalar_type(), member_->size())) {
    const c10::InferenceMode no_autograd;
    const at::Tensor wide = tensor.to(at::TensorOptions().device(at::kCPU).dtype(at::kFloat));
    GRADWIRE_RETURN_IF_ERROR(reduce(call, wide, root, op));
    if (result) at::Tensor(tensor).copy_(wide);
    return absl::OkStatus();
  }
  GRADWIRE_ASSIGN_OR_RETURN(const MpiReduction how,
                            mpi_reduction(member_->runtime(), tensor.scalar_type(), op.op));
  // MPI reduces in the host's memory.
  at::Tensor host = tensor.is_cpu() ? tensor : tensor.cpu();
  // The counts of MPI are ints, so long tensors are reduced in blocks of whole elements.
  const auto size = static_cast<int64_t>(host.element_size());
  const int64_t most = std::max<int64_t>(1, member_->block() / size);
  for (int64_t first = 0; first < host.numel(); first += most) {
    const int count = static_cast<int>(std::min(most, host.numel() - first));
    char* const data = bytes_of(host, first * size);
    GRADWIRE_RETURN_IF_ERROR(call.run({host}, [&](MPI_Request* request) {
      if (root < 0) {
        return MPI_Iallreduce(MPI_IN_PLACE, data, count, how.type, how.op, member_->collectives(), request);
      }
      // Only the root has a result. MPI wants MPI_IN_PLACE there, and the input elsewhere.
      return MPI_Ireduce(result ? MPI_IN_PLACE : data, result ? data : nullptr, count, how.type, how.op, root,
                         member_->collectives(), request);
    }));
  }
  if (!result) return absl::OkStatus();
  const c10::NoGradGuard no_grad;
  if (op.op == ReduceOp::kAvg) host.div_(member_->size());
  if (!tensor.is_cpu()) at::Tensor(tensor).copy_(host);
  return absl::OkStatus();
}

}  // namespace gradwire::collectives
