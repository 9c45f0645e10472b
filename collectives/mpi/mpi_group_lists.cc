#include <ATen/ops/div.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/collectives/mpi/mpi_group.h"
#include "gradwire/collectives/mpi/mpi_lists.h"
#include "gradwire/collectives/mpi/mpi_types.h"

namespace gradwire::collectives {

absl::Status MpiGroup::do_gather(const at::Tensor& tensor, const Tensors& outputs, int root,
                                 absl::Time deadline) {
  synchronize(tensor);
  Call call{.name = root < 0 ? "all_gather" : "gather", .deadline = deadline};
  const bool receives = root < 0 || root == member_->rank();
  const auto total = static_cast<int64_t>(tensor.nbytes());
  const int64_t most = std::max<int64_t>(1, member_->block() / member_->size());
  const bool direct = receives && total <= most && is_one_buffer(outputs) && !overlaps(tensor, outputs);
  for (int64_t offset = 0; offset < total; offset += most) {
    const int64_t bytes = std::min(most, total - offset);
    const int count = static_cast<int>(bytes);
    call.tensors = outputs;
    call.tensors.push_back(tensor);
    at::Tensor buffer;
    char* into = nullptr;
    if (direct) {
      into = bytes_of(outputs[0]);
    } else if (receives) {
      buffer = make_buffer(member_->size(), bytes, tensor);
      into = bytes_of(buffer);
      call.tensors.push_back(buffer);
    }
    GRADWIRE_RETURN_IF_ERROR(run(call, [&](MPI_Request* request) {
      char* const from = bytes_of(tensor, offset);
      if (root < 0) {
        return MPI_Iallgather(from, count, MPI_BYTE, into, count, MPI_BYTE, member_->collectives(), request);
      }
      return MPI_Igather(from, count, MPI_BYTE, into, count, MPI_BYTE, root, member_->collectives(), request);
    }));
    if (receives && !direct) unpack(buffer, offset, bytes, outputs);
  }
  return absl::OkStatus();
}

absl::Status MpiGroup::do_scatter(const at::Tensor& tensor, const Tensors& inputs, int root,
                                  absl::Time deadline) {
  Call call{.name = "scatter", .deadline = deadline};
  const bool sends = root == member_->rank();
  const auto total = static_cast<int64_t>(tensor.nbytes());
  const int64_t most = std::max<int64_t>(1, member_->block() / member_->size());
  const bool direct = sends && total <= most && is_one_buffer(inputs) && !overlaps(tensor, inputs);
  for (int64_t offset = 0; offset < total; offset += most) {
    const int64_t bytes = std::min(most, total - offset);
    const int count = static_cast<int>(bytes);
    call.tensors = inputs;
    call.tensors.push_back(tensor);
    char* from = nullptr;
    if (direct) {
      from = bytes_of(inputs[0]);
    } else if (sends) {
      call.tensors.push_back(make_buffer(member_->size(), bytes, tensor));
      pack(inputs, offset, bytes, call.tensors.back());
      from = bytes_of(call.tensors.back());
    }
    synchronize(tensor);
    GRADWIRE_RETURN_IF_ERROR(run(call, [&](MPI_Request* request) {
      return MPI_Iscatter(from, count, MPI_BYTE, bytes_of(tensor, offset), count, MPI_BYTE, root,
                          member_->collectives(), request);
    }));
  }
  return absl::OkStatus();
}

absl::Status MpiGroup::do_reduce_scatter(const at::Tensor& output, const Tensors& inputs, const Reduction& op,
                                         absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(const MpiReduction how,
                            mpi_reduction(member_->runtime(), output.scalar_type(), op.op));
  Call call{.name = "reduce_scatter", .deadline = deadline};
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
    call.tensors = inputs;
    call.tensors.push_back(host);
    if (!direct) {
      call.tensors.push_back(make_buffer(member_->size(), bytes, host));
      pack(inputs, offset, bytes, call.tensors.back());
    }
    char* const from = direct ? bytes_of(inputs[0]) : bytes_of(call.tensors.back());
    GRADWIRE_RETURN_IF_ERROR(run(call, [&](MPI_Request* request) {
      return MPI_Ireduce_scatter_block(from, bytes_of(host, offset), static_cast<int>(bytes / size), how.type,
                                       how.op, member_->collectives(), request);
    }));
  }
  if (op.op == ReduceOp::kAvg) host.div_(member_->size());
  if (!on_host) at::Tensor(output).copy_(host);
  return absl::OkStatus();
}

absl::Status MpiGroup::do_all_to_all(const Tensors& outputs, const Tensors& inputs, absl::Time deadline) {
  // Pairs may differ in size, and know of none but their own: a message for each, and no agreement on pieces.
  Call call{.name = "all_to_all", .deadline = deadline, .tensors = outputs};
  call.tensors.insert(call.tensors.end(), inputs.begin(), inputs.end());
  const int size = member_->size();
  const int rank = member_->rank();
  for (const at::Tensor& input : inputs) synchronize(input);
  for (int step = 1; step < size; ++step) {
    const int src = (rank + size - step) % size;
    GRADWIRE_RETURN_IF_ERROR(begin_message(call, false, outputs[static_cast<std::size_t>(src)], src));
  }
  for (int step = 1; step < size; ++step) {
    const int dst = (rank + step) % size;
    GRADWIRE_RETURN_IF_ERROR(begin_message(call, true, inputs[static_cast<std::size_t>(dst)], dst));
  }
  const at::Tensor& mine = inputs[static_cast<std::size_t>(rank)];
  if (mine.nbytes() != outputs[static_cast<std::size_t>(rank)].nbytes()) {
    return broken_off(call, absl::InvalidArgumentError(absl::StrCat(
                                "all_to_all: what this rank sends to itself has ", mine.nbytes(),
                                " bytes, the output ", outputs[static_cast<std::size_t>(rank)].nbytes())));
  }
  if (mine.numel() > 0) copy_bytes(mine, outputs[static_cast<std::size_t>(rank)]);
  GRADWIRE_RETURN_IF_ERROR(finish(call));
  return check_received(call, outputs);
}

absl::Status MpiGroup::begin_message(Call& call, bool sends, const at::Tensor& tensor, int peer) {
  auto message =
      MpiMessage::make(member_->runtime(), static_cast<int64_t>(tensor.nbytes()), member_->block());
  if (!message.ok()) return begun(call, message.status());
  MPI_Request request = MPI_REQUEST_NULL;
  constexpr int kTag = 0;
  const absl::Status status = member_->runtime().call(sends ? "MPI_Isend" : "MPI_Irecv", [&] {
    char* const data = bytes_of(tensor);
    return sends ? MPI_Isend(data, message->count(), message->type(), peer, kTag, member_->collectives(),
                             &request)
                 : MPI_Irecv(data, message->count(), message->type(), peer, kTag, member_->collectives(),
                             &request);
  });
  GRADWIRE_RETURN_IF_ERROR(begun(call, status));
  call.requests.push_back(request);
  return absl::OkStatus();
}

absl::Status MpiGroup::check_received(const Call& call, const Tensors& outputs) {
  // The receives come first.
  for (int step = 1; step < member_->size(); ++step) {
    const int src = (member_->rank() + member_->size() - step) % member_->size();
    MPI_Count bytes = 0;
    MPI_Get_elements_x(&call.statuses[static_cast<std::size_t>(step - 1)], MPI_BYTE, &bytes);
    const std::size_t want = outputs[static_cast<std::size_t>(src)].nbytes();
    if (bytes != static_cast<MPI_Count>(want)) {
      return absl::InvalidArgumentError(
          absl::StrCat("all_to_all: rank ", src, " sent ", bytes, " bytes, the output for it has ", want));
    }
  }
  return absl::OkStatus();
}

}  // namespace gradwire::collectives
