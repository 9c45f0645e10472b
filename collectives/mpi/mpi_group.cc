#include "gradwire/collectives/mpi/mpi_group.h"

#include <ATen/ops/div.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/mpi/mpi_lists.h"
#include "gradwire/collectives/mpi/mpi_types.h"

namespace gradwire::collectives {
namespace {

// After that (or a quarter of the time there is) a collective is slow: the store hears of it, and is asked who has left.
constexpr absl::Duration kSlow = absl::Milliseconds(100);
constexpr absl::Duration kLooks = absl::Milliseconds(250);

}  // namespace

MpiGroup::~MpiGroup() {
  // Who broke off has said so.
  if (member_->leave()) member_->witness().leave(finished_.load(), "");
}

void MpiGroup::abort(const absl::Status& reason) {
  if (member_->broken()) return;
  (void)member_->break_with(reason);
  member_->witness().leave(finished_.load(), reason.message());
}

absl::Status MpiGroup::broadcast(at::Tensor tensor, int root, absl::Time deadline) {
  return numbered([&] { return do_broadcast(tensor, root, deadline); });
}

absl::Status MpiGroup::reduce(at::Tensor tensor, int root, const Reduction& op, absl::Time deadline) {
  return numbered([&] { return do_reduce(tensor, root, op, deadline); });
}

absl::Status MpiGroup::all_reduce(at::Tensor tensor, const Reduction& op, absl::Time deadline) {
  return numbered([&] { return do_reduce(tensor, -1, op, deadline); });
}

absl::Status MpiGroup::gather(at::Tensor tensor, Tensors outputs, int root, absl::Time deadline) {
  return numbered([&] { return do_gather(tensor, outputs, root, deadline); });
}

absl::Status MpiGroup::all_gather(at::Tensor tensor, Tensors outputs, absl::Time deadline) {
  return numbered([&] { return do_gather(tensor, outputs, -1, deadline); });
}

absl::Status MpiGroup::scatter(at::Tensor tensor, Tensors inputs, int root, absl::Time deadline) {
  return numbered([&] { return do_scatter(tensor, inputs, root, deadline); });
}

absl::Status MpiGroup::reduce_scatter(at::Tensor output, Tensors inputs, const Reduction& op,
                                      absl::Time deadline) {
  return numbered([&] { return do_reduce_scatter(output, inputs, op, deadline); });
}

absl::Status MpiGroup::all_to_all(Tensors outputs, Tensors inputs, absl::Time deadline) {
  return numbered([&] { return do_all_to_all(outputs, inputs, deadline); });
}

absl::Status MpiGroup::barrier(absl::Time deadline) {
  return numbered([&] {
    Call call{.name = "barrier", .deadline = deadline};
    return run(call, [&](MPI_Request* request) { return MPI_Ibarrier(member_->collectives(), request); });
  });
}

Future<void> MpiGroup::send(at::Tensor tensor, int dst, int tag, absl::Time deadline) {
  return messages_.send(std::move(tensor), dst, tag, deadline);
}

Future<int> MpiGroup::receive(at::Tensor tensor, int src, int tag, absl::Time deadline) {
  return messages_.receive(std::move(tensor), src, tag, deadline);
}

absl::Status MpiGroup::begun(Call& call, const absl::Status& status) {
  if (status.ok()) return status;
  // The others may have begun theirs: the group's order is lost.
  return broken_off(call, with_context(status, call.name));
}

absl::Status MpiGroup::finish(Call& call) {
  MpiPause pause;
  absl::Duration slow = kSlow;
  absl::Time next_look = absl::InfinitePast();
  call.statuses.resize(call.requests.size());
  for (bool first = true;;) {
    int done = 0;
    const absl::Status status = member_->runtime().call("MPI_Testall", [&] {
      return MPI_Testall(static_cast<int>(call.requests.size()), call.requests.data(), &done,
                         call.statuses.data());
    });
    if (!status.ok()) return broken_off(call, with_context(status, call.name));
    if (done != 0) return absl::OkStatus();
    if (member_->broken()) return broken_off(call, member_->refusal());
    if (!pause.pause()) continue;
    if (std::exchange(first, false)) slow = std::min(slow, (call.deadline - pause.now()) / 4);
    if (pause.now() >= call.deadline) return broken_off(call, overdue(call));
    if (pause.waited() < slow) continue;
    member_->witness().wait_in(begun_);
    if (pause.now() < next_look) continue;
    next_look = pause.now() + kLooks;
    const absl::Status departures = member_->witness().departures(begun_);
    if (!departures.ok()) return broken_off(call, with_context(departures, call.name));
  }
}

absl::Status MpiGroup::overdue(const Call& call) {
  // Those that wait for this one in turn are told that it came.
  member_->witness().wait_in(begun_);
  const std::string missing = member_->witness().missing(begun_);
  return absl::DeadlineExceededError(absl::StrCat(
      call.name, " number ", begun_, " of the group did not end in time on rank ", member_->rank(), ": ",
      missing.empty() ? "every rank has come, and it is still under way" : missing));
}

absl::Status MpiGroup::broken_off(Call& call, const absl::Status& reason) {
  const bool first = !member_->broken();
  (void)member_->break_with(reason);
  // A group that was left in order, or aborted, has said so.
  if (first) member_->witness().leave(finished_.load(), reason.message());
  member_->abandon(std::move(call.requests), std::move(call.tensors));
  return reason;
}

absl::Status MpiGroup::do_broadcast(const at::Tensor& tensor, int root, absl::Time deadline) {
  synchronize(tensor);
  Call call{.name = "broadcast", .deadline = deadline};
  const auto total = static_cast<int64_t>(tensor.nbytes());
  for (int64_t offset = 0; offset < total; offset += member_->block()) {
    const int64_t bytes = std::min(member_->block(), total - offset);
    call.tensors = {tensor};
    GRADWIRE_RETURN_IF_ERROR(run(call, [&](MPI_Request* request) {
      return MPI_Ibcast(bytes_of(tensor, offset), static_cast<int>(bytes), MPI_BYTE, root,
                        member_->collectives(), request);
    }));
  }
  return absl::OkStatus();
}

absl::Status MpiGroup::do_reduce(const at::Tensor& tensor, int root, const Reduction& op,
                                 absl::Time deadline) {
  GRADWIRE_ASSIGN_OR_RETURN(const MpiReduction how,
                            mpi_reduction(member_->runtime(), tensor.scalar_type(), op.op));
  Call call{.name = root < 0 ? "all_reduce" : "reduce", .deadline = deadline};
  // MPI reduces in the host's memory.
  at::Tensor host = tensor.is_cpu() ? tensor : tensor.cpu();
  const bool result = root < 0 || root == member_->rank();
  const auto size = static_cast<int64_t>(host.element_size());
  const int64_t most = std::max<int64_t>(1, member_->block() / size);
  for (int64_t first = 0; first < host.numel(); first += most) {
    const int count = static_cast<int>(std::min(most, host.numel() - first));
    char* const data = bytes_of(host, first * size);
    call.tensors = {host};
    GRADWIRE_RETURN_IF_ERROR(run(call, [&](MPI_Request* request) {
      if (root < 0) {
        return MPI_Iallreduce(MPI_IN_PLACE, data, count, how.type, how.op, member_->collectives(), request);
      }
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
