#pragma once

// The methods of ProcessGroup as functions, like those of torch.distributed: on `group`, or on the world
// where that is nullptr. `src` and `dst` are ranks of the world in every group. All throw Error:
// FailedPrecondition where there is no world or the group has been destroyed; InvalidArgument, before
// anything is sent, for arguments that cannot be right; DeadlineExceeded, Unavailable and Aborted as
// ProcessGroup says. NAME_async throws the first two at once; the others come out of the Work. The tensors
// are the operation's until it has ended.

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/world.h"

namespace gradwire::collectives {

// One tensor for each rank, or for each GPU of this rank.
using Tensors = std::vector<at::Tensor>;
// What NAME_async returns.
using WorkPtr = std::shared_ptr<Work>;

namespace functions_internal {

// The group, kept alive where it is the world; a group of the caller's is his to keep.
class Target {
 public:
  explicit Target(const Group& group)
      : world_(group == nullptr ? world() : nullptr), group_(group ? *group : *world_) {}
  ProcessGroup* operator->() const { return &group_; }

 private:
  const Group world_;
  ProcessGroup& group_;
};

}  // namespace functions_internal

// This process's rank in the group; -1 where it is no member.
inline int get_rank(const Group& group = nullptr) { return functions_internal::Target(group)->rank(); }
// Number of ranks in the group.
inline int get_world_size(const Group& group = nullptr) { return functions_internal::Target(group)->size(); }
// The group's backend.
inline Backend get_backend(const Group& group = nullptr) {
  return functions_internal::Target(group)->backend();
}

// A group of these ranks of the world (empty: all), entered by every rank of the world; see
// ProcessGroup::new_group.
inline Group new_group(std::vector<int> ranks = {}, const NewGroupOptions& options = {}) {
  return world()->new_group(std::move(ranks), options);
}

// Every rank's `tensor` becomes that of `src`.
inline void broadcast(at::Tensor tensor, int src, const Group& group = nullptr) {
  functions_internal::Target(group)->broadcast(std::move(tensor), src);
}
// As broadcast, but returns at once.
inline WorkPtr broadcast_async(at::Tensor tensor, int src, const Group& group = nullptr) {
  return functions_internal::Target(group)->broadcast_async(std::move(tensor), src);
}

// `tensor` at `dst` becomes the reduction of all ranks'; elsewhere it stays as it was.
inline void reduce(at::Tensor tensor, int dst, const Reduction& op = ReduceOp::kSum,
                   const Group& group = nullptr) {
  functions_internal::Target(group)->reduce(std::move(tensor), dst, op);
}
// As reduce, but returns at once.
inline WorkPtr reduce_async(at::Tensor tensor, int dst, const Reduction& op = ReduceOp::kSum,
                            const Group& group = nullptr) {
  return functions_internal::Target(group)->reduce_async(std::move(tensor), dst, op);
}

// `tensor` becomes the reduction of all ranks', element by element; the same bits on every rank.
inline void all_reduce(at::Tensor tensor, const Reduction& op = ReduceOp::kSum,
                       const Group& group = nullptr) {
  functions_internal::Target(group)->all_reduce(std::move(tensor), op);
}
// As all_reduce, but returns at once.
inline WorkPtr all_reduce_async(at::Tensor tensor, const Reduction& op = ReduceOp::kSum,
                                const Group& group = nullptr) {
  return functions_internal::Target(group)->all_reduce_async(std::move(tensor), op);
}

// At `dst` list[i] becomes rank i's `tensor`. `list`: one tensor for each rank, at `dst` alone.
inline void gather(at::Tensor tensor, Tensors list = {}, int dst = 0, const Group& group = nullptr) {
  functions_internal::Target(group)->gather(std::move(tensor), std::move(list), dst);
}
// As gather, but returns at once.
inline WorkPtr gather_async(at::Tensor tensor, Tensors list = {}, int dst = 0, const Group& group = nullptr) {
  return functions_internal::Target(group)->gather_async(std::move(tensor), std::move(list), dst);
}

// list[i] becomes rank i's `tensor`. `list`: one tensor of its shape for each rank.
inline void all_gather(Tensors list, at::Tensor tensor, const Group& group = nullptr) {
  functions_internal::Target(group)->all_gather(std::move(list), std::move(tensor));
}
// As all_gather, but returns at once.
inline WorkPtr all_gather_async(Tensors list, at::Tensor tensor, const Group& group = nullptr) {
  return functions_internal::Target(group)->all_gather_async(std::move(list), std::move(tensor));
}

// `tensor` becomes this rank's entry of the `list` at `src`, which is empty elsewhere.
inline void scatter(at::Tensor tensor, Tensors list = {}, int src = 0, const Group& group = nullptr) {
  functions_internal::Target(group)->scatter(std::move(tensor), std::move(list), src);
}
// As scatter, but returns at once.
inline WorkPtr scatter_async(at::Tensor tensor, Tensors list = {}, int src = 0,
                             const Group& group = nullptr) {
  return functions_internal::Target(group)->scatter_async(std::move(tensor), std::move(list), src);
}

// `output` becomes the reduction of all ranks' list[get_rank(group)].
inline void reduce_scatter(at::Tensor output, Tensors list, const Reduction& op = ReduceOp::kSum,
                           const Group& group = nullptr) {
  functions_internal::Target(group)->reduce_scatter(std::move(output), std::move(list), op);
}
// As reduce_scatter, but returns at once.
inline WorkPtr reduce_scatter_async(at::Tensor output, Tensors list, const Reduction& op = ReduceOp::kSum,
                                    const Group& group = nullptr) {
  return functions_internal::Target(group)->reduce_scatter_async(std::move(output), std::move(list), op);
}

// outputs[i] becomes rank i's inputs[get_rank(group)]. Both have one tensor for each rank.
inline void all_to_all(Tensors outputs, Tensors inputs, const Group& group = nullptr) {
  functions_internal::Target(group)->all_to_all(std::move(outputs), std::move(inputs));
}
// As all_to_all, but returns at once.
inline WorkPtr all_to_all_async(Tensors outputs, Tensors inputs, const Group& group = nullptr) {
  return functions_internal::Target(group)->all_to_all_async(std::move(outputs), std::move(inputs));
}

// Returns when all ranks have called it. `device_ids`: the CUDA devices to use, for nccl.
inline void barrier(const std::vector<int>& device_ids = {}, const Group& group = nullptr) {
  functions_internal::Target(group)->barrier(device_ids);
}
// As barrier, but returns at once.
inline WorkPtr barrier_async(const std::vector<int>& device_ids = {}, const Group& group = nullptr) {
  return functions_internal::Target(group)->barrier_async(device_ids);
}

// `output` becomes all ranks' `input`, one behind the other along dimension 0, or stacked.
inline void all_gather_into_tensor(at::Tensor output, at::Tensor input, const Group& group = nullptr) {
  functions_internal::Target(group)->all_gather_into_tensor(std::move(output), std::move(input));
}
// As all_gather_into_tensor, but returns at once.
inline WorkPtr all_gather_into_tensor_async(at::Tensor output, at::Tensor input,
                                            const Group& group = nullptr) {
  return functions_internal::Target(group)->all_gather_into_tensor_async(std::move(output), std::move(input));
}

// `output` becomes the reduction of this rank's part of all ranks' `input`, cut along dimension 0.
inline void reduce_scatter_tensor(at::Tensor output, at::Tensor input, const Reduction& op = ReduceOp::kSum,
                                  const Group& group = nullptr) {
  functions_internal::Target(group)->reduce_scatter_tensor(std::move(output), std::move(input), op);
}
// As reduce_scatter_tensor, but returns at once.
inline WorkPtr reduce_scatter_tensor_async(at::Tensor output, at::Tensor input,
                                           const Reduction& op = ReduceOp::kSum,
                                           const Group& group = nullptr) {
  return functions_internal::Target(group)->reduce_scatter_tensor_async(std::move(output), std::move(input),
                                                                        op);
}

// As all_to_all, with tensors cut along dimension 0: splits are rows for each rank; empty: equal parts.
inline void all_to_all_single(at::Tensor output, at::Tensor input,
                              const std::vector<int64_t>& output_splits = {},
                              const std::vector<int64_t>& input_splits = {}, const Group& group = nullptr) {
  functions_internal::Target(group)->all_to_all_single(std::move(output), std::move(input), output_splits,
                                                       input_splits);
}
// As all_to_all_single, but returns at once.
inline WorkPtr all_to_all_single_async(at::Tensor output, at::Tensor input,
                                       const std::vector<int64_t>& output_splits = {},
                                       const std::vector<int64_t>& input_splits = {},
                                       const Group& group = nullptr) {
  return functions_internal::Target(group)->all_to_all_single_async(std::move(output), std::move(input),
                                                                    output_splits, input_splits);
}

// A barrier that at its `timeout` (none: the group's) fails with DeadlineExceeded, which names every rank
// that did not come, or the first alone without `wait_all_ranks`. The group stays usable.
inline void monitored_barrier(std::optional<absl::Duration> timeout = std::nullopt,
                              bool wait_all_ranks = true, const Group& group = nullptr) {
  functions_internal::Target(group)->monitored_barrier(timeout, wait_all_ranks);
}

// Sends to `dst`, which receives with the same `tag` (0 or more). Returns when `tensor` may be changed: a
// large one waits for its receive.
inline void send(at::Tensor tensor, int dst, int tag = 0, const Group& group = nullptr) {
  functions_internal::Target(group)->send(std::move(tensor), dst, tag);
}
// Receives from `src`, or from any rank (where the backend can), and returns the rank of the world that sent.
inline int recv(at::Tensor tensor, int src = kAnySource, int tag = 0, const Group& group = nullptr) {
  return functions_internal::Target(group)->recv(std::move(tensor), src, tag);
}
// As send, but returns at once; `tensor` must not change before the Work has ended.
inline WorkPtr isend(at::Tensor tensor, int dst, int tag = 0, const Group& group = nullptr) {
  return functions_internal::Target(group)->isend(std::move(tensor), dst, tag);
}
// As recv, but returns at once; Work::source_rank() says who sent.
inline WorkPtr irecv(at::Tensor tensor, int src = kAnySource, int tag = 0, const Group& group = nullptr) {
  return functions_internal::Target(group)->irecv(std::move(tensor), src, tag);
}

// tensors[0] of `src` goes to all tensors of all ranks; one for each GPU of this rank, of nccl alone. Returns
// at once.
inline WorkPtr broadcast_multigpu_async(Tensors tensors, int src, const Group& group = nullptr) {
  return functions_internal::Target(group)->broadcast_multigpu_async(std::move(tensors), src);
}
// As broadcast_multigpu_async, and waits.
inline void broadcast_multigpu(Tensors tensors, int src, const Group& group = nullptr) {
  functions_internal::Target(group)->broadcast_multigpu_async(std::move(tensors), src)->wait();
}

// Every tensor of every rank becomes the reduction of all; one for each GPU, of nccl alone. Returns at once.
inline WorkPtr all_reduce_multigpu_async(Tensors tensors, const Reduction& op = ReduceOp::kSum,
                                         const Group& group = nullptr) {
  return functions_internal::Target(group)->all_reduce_multigpu_async(std::move(tensors), op);
}
// As all_reduce_multigpu_async, and waits.
inline void all_reduce_multigpu(Tensors tensors, const Reduction& op = ReduceOp::kSum,
                                const Group& group = nullptr) {
  functions_internal::Target(group)->all_reduce_multigpu_async(std::move(tensors), op)->wait();
}

// tensors[0] of `dst` becomes the reduction of all tensors of all ranks; of nccl alone. Returns at once.
inline WorkPtr reduce_multigpu_async(Tensors tensors, int dst, const Reduction& op = ReduceOp::kSum,
                                     const Group& group = nullptr) {
  return functions_internal::Target(group)->reduce_multigpu_async(std::move(tensors), dst, op);
}
// As reduce_multigpu_async, and waits.
inline void reduce_multigpu(Tensors tensors, int dst, const Reduction& op = ReduceOp::kSum,
                            const Group& group = nullptr) {
  functions_internal::Target(group)->reduce_multigpu_async(std::move(tensors), dst, op)->wait();
}

// lists[i][rank * tensors.size() + j] becomes tensors[j] of that rank; of nccl alone. Returns at once.
inline WorkPtr all_gather_multigpu_async(std::vector<Tensors> lists, Tensors tensors,
                                         const Group& group = nullptr) {
  return functions_internal::Target(group)->all_gather_multigpu_async(std::move(lists), std::move(tensors));
}
// As all_gather_multigpu_async, and waits.
inline void all_gather_multigpu(std::vector<Tensors> lists, Tensors tensors, const Group& group = nullptr) {
  functions_internal::Target(group)->all_gather_multigpu_async(std::move(lists), std::move(tensors))->wait();
}

}  // namespace gradwire::collectives
