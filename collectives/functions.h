#pragma once

// The methods of ProcessGroup as free functions, like the functions of torch.distributed. Each acts on
// `group`, or on the world if `group` is nullptr. `src` and `dst` are ranks of the world, in every group.
//
// All throw Error. FailedPrecondition: this process has no world, or the group has been destroyed.
// InvalidArgument, before anything is sent: an argument is invalid. DeadlineExceeded, Unavailable and
// Aborted: see ProcessGroup. NAME_async itself throws FailedPrecondition and InvalidArgument; the Work
// reports the other errors. The caller must not change or free the tensors before the operation has ended.

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
// The return type of NAME_async.
using WorkPtr = std::shared_ptr<Work>;

namespace functions_internal {

// The group that a function acts on. Keeps the world alive during the call; the caller keeps its own group
// alive.
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

// This process's rank in the group; -1 if it is not a member.
inline int get_rank(const Group& group = nullptr) { return functions_internal::Target(group)->rank(); }
// Number of ranks in the group.
inline int get_world_size(const Group& group = nullptr) { return functions_internal::Target(group)->size(); }
// The group's backend.
inline Backend get_backend(const Group& group = nullptr) {
  return functions_internal::Target(group)->backend();
}

// Makes a group of these ranks of the world (empty: all ranks). Every rank of the world must call it; see
// ProcessGroup::new_group.
inline Group new_group(std::vector<int> ranks = {}, const NewGroupOptions& options = {}) {
  return world()->new_group(std::move(ranks), options);
}

// Copies the `tensor` of `src` to the `tensor` of every rank.
inline void broadcast(at::Tensor tensor, int src, const Group& group = nullptr) {
  functions_internal::Target(group)->broadcast(std::move(tensor), src);
}
// As broadcast, but returns at once.
inline WorkPtr broadcast_async(at::Tensor tensor, int src, const Group& group = nullptr) {
  return functions_internal::Target(group)->broadcast_async(std::move(tensor), src);
}

// The `tensor` of `dst` becomes the reduction of all ranks' tensors; the other tensors do not change.
inline void reduce(at::Tensor tensor, int dst, const Reduction& op = ReduceOp::kSum,
                   const Group& group = nullptr) {
  functions_internal::Target(group)->reduce(std::move(tensor), dst, op);
}
// As reduce, but returns at once.
inline WorkPtr reduce_async(at::Tensor tensor, int dst, const Reduction& op = ReduceOp::kSum,
                            const Group& group = nullptr) {
  return functions_internal::Target(group)->reduce_async(std::move(tensor), dst, op);
}

// `tensor` becomes the reduction of all ranks' tensors, element by element; every rank gets the same bits.
inline void all_reduce(at::Tensor tensor, const Reduction& op = ReduceOp::kSum,
                       const Group& group = nullptr) {
  functions_internal::Target(group)->all_reduce(std::move(tensor), op);
}
// As all_reduce, but returns at once.
inline WorkPtr all_reduce_async(at::Tensor tensor, const Reduction& op = ReduceOp::kSum,
                                const Group& group = nullptr) {
  return functions_internal::Target(group)->all_reduce_async(std::move(tensor), op);
}

// At `dst`, list[i] becomes rank i's `tensor`. `list`: at `dst`, one tensor for each rank; empty elsewhere.
inline void gather(at::Tensor tensor, Tensors list = {}, int dst = 0, const Group& group = nullptr) {
  functions_internal::Target(group)->gather(std::move(tensor), std::move(list), dst);
}
// As gather, but returns at once.
inline WorkPtr gather_async(at::Tensor tensor, Tensors list = {}, int dst = 0, const Group& group = nullptr) {
  return functions_internal::Target(group)->gather_async(std::move(tensor), std::move(list), dst);
}

// list[i] becomes rank i's `tensor`. `list`: for each rank, one tensor of the shape of `tensor`.
inline void all_gather(Tensors list, at::Tensor tensor, const Group& group = nullptr) {
  functions_internal::Target(group)->all_gather(std::move(list), std::move(tensor));
}
// As all_gather, but returns at once.
inline WorkPtr all_gather_async(Tensors list, at::Tensor tensor, const Group& group = nullptr) {
  return functions_internal::Target(group)->all_gather_async(std::move(list), std::move(tensor));
}

// `tensor` becomes this rank's entry of the `list` of `src`. `list`: at `src`, one tensor for each rank;
// empty elsewhere.
inline void scatter(at::Tensor tensor, Tensors list = {}, int src = 0, const Group& group = nullptr) {
  functions_internal::Target(group)->scatter(std::move(tensor), std::move(list), src);
}
// As scatter, but returns at once.
inline WorkPtr scatter_async(at::Tensor tensor, Tensors list = {}, int src = 0,
                             const Group& group = nullptr) {
  return functions_internal::Target(group)->scatter_async(std::move(tensor), std::move(list), src);
}

// `output` becomes the reduction, over all ranks, of their list[get_rank(group)].
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

// `output` becomes the `input` of all ranks, concatenated along dimension 0 or stacked, as its shape says.
inline void all_gather_into_tensor(at::Tensor output, at::Tensor input, const Group& group = nullptr) {
  functions_internal::Target(group)->all_gather_into_tensor(std::move(output), std::move(input));
}
// As all_gather_into_tensor, but returns at once.
inline WorkPtr all_gather_into_tensor_async(at::Tensor output, at::Tensor input,
                                            const Group& group = nullptr) {
  return functions_internal::Target(group)->all_gather_into_tensor_async(std::move(output), std::move(input));
}

// Reduces the `input` of all ranks, divides the result along dimension 0 into one part for each rank, and
// writes this rank's part to `output`.
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

// As all_to_all, with one tensor that is divided along dimension 0. `output_splits` and `input_splits`:
// number of rows for each rank; empty: equal parts.
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

// A barrier that fails with DeadlineExceeded at its `timeout` (default: the group's timeout). The message
// names every rank that did not arrive, or only the first one if `wait_all_ranks` is false. The group stays
// usable.
inline void monitored_barrier(std::optional<absl::Duration> timeout = std::nullopt,
                              bool wait_all_ranks = true, const Group& group = nullptr) {
  functions_internal::Target(group)->monitored_barrier(timeout, wait_all_ranks);
}

// Sends to `dst`, which must receive with the same `tag` (0 or more). Returns when the caller may change
// `tensor` again; for a large tensor that is only after `dst` has called recv.
inline void send(at::Tensor tensor, int dst, int tag = 0, const Group& group = nullptr) {
  functions_internal::Target(group)->send(std::move(tensor), dst, tag);
}
// Receives from `src`, or from any rank if the backend supports that. Returns the sender's rank in the world.
inline int recv(at::Tensor tensor, int src = kAnySource, int tag = 0, const Group& group = nullptr) {
  return functions_internal::Target(group)->recv(std::move(tensor), src, tag);
}
// As send, but returns at once; `tensor` must not change before the Work has ended.
inline WorkPtr isend(at::Tensor tensor, int dst, int tag = 0, const Group& group = nullptr) {
  return functions_internal::Target(group)->isend(std::move(tensor), dst, tag);
}
// As recv, but returns at once; Work::source_rank() returns the sender.
inline WorkPtr irecv(at::Tensor tensor, int src = kAnySource, int tag = 0, const Group& group = nullptr) {
  return functions_internal::Target(group)->irecv(std::move(tensor), src, tag);
}

// Copies tensors[0] of `src` to all tensors of all ranks. `tensors`: one for each GPU of this rank. Only for
// the nccl backend. Returns at once.
inline WorkPtr broadcast_multigpu_async(Tensors tensors, int src, const Group& group = nullptr) {
  return functions_internal::Target(group)->broadcast_multigpu_async(std::move(tensors), src);
}
// As broadcast_multigpu_async, but waits until it has ended.
inline void broadcast_multigpu(Tensors tensors, int src, const Group& group = nullptr) {
  functions_internal::Target(group)->broadcast_multigpu_async(std::move(tensors), src)->wait();
}

// Every tensor of every rank becomes the reduction of all of them. `tensors`: one for each GPU of this rank.
// Only for the nccl backend. Returns at once.
inline WorkPtr all_reduce_multigpu_async(Tensors tensors, const Reduction& op = ReduceOp::kSum,
                                         const Group& group = nullptr) {
  return functions_internal::Target(group)->all_reduce_multigpu_async(std::move(tensors), op);
}
// As all_reduce_multigpu_async, but waits until it has ended.
inline void all_reduce_multigpu(Tensors tensors, const Reduction& op = ReduceOp::kSum,
                                const Group& group = nullptr) {
  functions_internal::Target(group)->all_reduce_multigpu_async(std::move(tensors), op)->wait();
}

// tensors[0] of `dst` becomes the reduction of all tensors of all ranks. Only for the nccl backend. Returns
// at once.
inline WorkPtr reduce_multigpu_async(Tensors tensors, int dst, const Reduction& op = ReduceOp::kSum,
                                     const Group& group = nullptr) {
  return functions_internal::Target(group)->reduce_multigpu_async(std::move(tensors), dst, op);
}
// As reduce_multigpu_async, but waits until it has ended.
inline void reduce_multigpu(Tensors tensors, int dst, const Reduction& op = ReduceOp::kSum,
                            const Group& group = nullptr) {
  functions_internal::Target(group)->reduce_multigpu_async(std::move(tensors), dst, op)->wait();
}

// lists[i][rank * tensors.size() + j] becomes tensors[j] of that rank. Only for the nccl backend. Returns at
// once.
inline WorkPtr all_gather_multigpu_async(std::vector<Tensors> lists, Tensors tensors,
                                         const Group& group = nullptr) {
  return functions_internal::Target(group)->all_gather_multigpu_async(std::move(lists), std::move(tensors));
}
// As all_gather_multigpu_async, but waits until it has ended.
inline void all_gather_multigpu(std::vector<Tensors> lists, Tensors tensors, const Group& group = nullptr) {
  functions_internal::Target(group)->all_gather_multigpu_async(std::move(lists), std::move(tensors))->wait();
}

}  // namespace gradwire::collectives
