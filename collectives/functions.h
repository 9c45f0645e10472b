#pragma once

// The methods of ProcessGroup as functions: on `group`, or on the world where that is nullptr.

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/world.h"

namespace gradwire::collectives {

using Tensors = std::vector<at::Tensor>;
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

// In this group; -1 where this rank is no member of it.
inline int get_rank(const Group& group = nullptr) { return functions_internal::Target(group)->rank(); }
inline int get_world_size(const Group& group = nullptr) { return functions_internal::Target(group)->size(); }
inline Backend get_backend(const Group& group = nullptr) {
  return functions_internal::Target(group)->backend();
}

// Of the world's ranks; see ProcessGroup::new_group.
inline Group new_group(std::vector<int> ranks = {}, const NewGroupOptions& options = {}) {
  return world()->new_group(std::move(ranks), options);
}

inline void broadcast(at::Tensor tensor, int src, const Group& group = nullptr) {
  functions_internal::Target(group)->broadcast(std::move(tensor), src);
}
inline WorkPtr broadcast_async(at::Tensor tensor, int src, const Group& group = nullptr) {
  return functions_internal::Target(group)->broadcast_async(std::move(tensor), src);
}

inline void reduce(at::Tensor tensor, int dst, const Reduction& op = ReduceOp::kSum,
                   const Group& group = nullptr) {
  functions_internal::Target(group)->reduce(std::move(tensor), dst, op);
}
inline WorkPtr reduce_async(at::Tensor tensor, int dst, const Reduction& op = ReduceOp::kSum,
                            const Group& group = nullptr) {
  return functions_internal::Target(group)->reduce_async(std::move(tensor), dst, op);
}

inline void all_reduce(at::Tensor tensor, const Reduction& op = ReduceOp::kSum,
                       const Group& group = nullptr) {
  functions_internal::Target(group)->all_reduce(std::move(tensor), op);
}
inline WorkPtr all_reduce_async(at::Tensor tensor, const Reduction& op = ReduceOp::kSum,
                                const Group& group = nullptr) {
  return functions_internal::Target(group)->all_reduce_async(std::move(tensor), op);
}

inline void gather(at::Tensor tensor, Tensors list = {}, int dst = 0, const Group& group = nullptr) {
  functions_internal::Target(group)->gather(std::move(tensor), std::move(list), dst);
}
inline WorkPtr gather_async(at::Tensor tensor, Tensors list = {}, int dst = 0, const Group& group = nullptr) {
  return functions_internal::Target(group)->gather_async(std::move(tensor), std::move(list), dst);
}

inline void all_gather(Tensors list, at::Tensor tensor, const Group& group = nullptr) {
  functions_internal::Target(group)->all_gather(std::move(list), std::move(tensor));
}
inline WorkPtr all_gather_async(Tensors list, at::Tensor tensor, const Group& group = nullptr) {
  return functions_internal::Target(group)->all_gather_async(std::move(list), std::move(tensor));
}

inline void scatter(at::Tensor tensor, Tensors list = {}, int src = 0, const Group& group = nullptr) {
  functions_internal::Target(group)->scatter(std::move(tensor), std::move(list), src);
}
inline WorkPtr scatter_async(at::Tensor tensor, Tensors list = {}, int src = 0,
                             const Group& group = nullptr) {
  return functions_internal::Target(group)->scatter_async(std::move(tensor), std::move(list), src);
}

inline void reduce_scatter(at::Tensor output, Tensors list, const Reduction& op = ReduceOp::kSum,
                           const Group& group = nullptr) {
  functions_internal::Target(group)->reduce_scatter(std::move(output), std::move(list), op);
}
inline WorkPtr reduce_scatter_async(at::Tensor output, Tensors list, const Reduction& op = ReduceOp::kSum,
                                    const Group& group = nullptr) {
  return functions_internal::Target(group)->reduce_scatter_async(std::move(output), std::move(list), op);
}

inline void all_to_all(Tensors outputs, Tensors inputs, const Group& group = nullptr) {
  functions_internal::Target(group)->all_to_all(std::move(outputs), std::move(inputs));
}
inline WorkPtr all_to_all_async(Tensors outputs, Tensors inputs, const Group& group = nullptr) {
  return functions_internal::Target(group)->all_to_all_async(std::move(outputs), std::move(inputs));
}

inline void barrier(const std::vector<int>& device_ids = {}, const Group& group = nullptr) {
  functions_internal::Target(group)->barrier(device_ids);
}
inline WorkPtr barrier_async(const std::vector<int>& device_ids = {}, const Group& group = nullptr) {
  return functions_internal::Target(group)->barrier_async(device_ids);
}

inline void all_gather_into_tensor(at::Tensor output, at::Tensor input, const Group& group = nullptr) {
  functions_internal::Target(group)->all_gather_into_tensor(std::move(output), std::move(input));
}
inline WorkPtr all_gather_into_tensor_async(at::Tensor output, at::Tensor input,
                                            const Group& group = nullptr) {
  return functions_internal::Target(group)->all_gather_into_tensor_async(std::move(output), std::move(input));
}

inline void reduce_scatter_tensor(at::Tensor output, at::Tensor input, const Reduction& op = ReduceOp::kSum,
                                  const Group& group = nullptr) {
  functions_internal::Target(group)->reduce_scatter_tensor(std::move(output), std::move(input), op);
}
inline WorkPtr reduce_scatter_tensor_async(at::Tensor output, at::Tensor input,
                                           const Reduction& op = ReduceOp::kSum,
                                           const Group& group = nullptr) {
  return functions_internal::Target(group)->reduce_scatter_tensor_async(std::move(output), std::move(input),
                                                                        op);
}

inline void all_to_all_single(at::Tensor output, at::Tensor input,
                              const std::vector<int64_t>& output_splits = {},
                              const std::vector<int64_t>& input_splits = {}, const Group& group = nullptr) {
  functions_internal::Target(group)->all_to_all_single(std::move(output), std::move(input), output_splits,
                                                       input_splits);
}
inline WorkPtr all_to_all_single_async(at::Tensor output, at::Tensor input,
                                       const std::vector<int64_t>& output_splits = {},
                                       const std::vector<int64_t>& input_splits = {},
                                       const Group& group = nullptr) {
  return functions_internal::Target(group)->all_to_all_single_async(std::move(output), std::move(input),
                                                                    output_splits, input_splits);
}

inline void monitored_barrier(std::optional<absl::Duration> timeout = std::nullopt,
                              bool wait_all_ranks = true, const Group& group = nullptr) {
  functions_internal::Target(group)->monitored_barrier(timeout, wait_all_ranks);
}

inline void send(at::Tensor tensor, int dst, int tag = 0, const Group& group = nullptr) {
  functions_internal::Target(group)->send(std::move(tensor), dst, tag);
}
inline int recv(at::Tensor tensor, int src = kAnySource, int tag = 0, const Group& group = nullptr) {
  return functions_internal::Target(group)->recv(std::move(tensor), src, tag);
}
inline WorkPtr isend(at::Tensor tensor, int dst, int tag = 0, const Group& group = nullptr) {
  return functions_internal::Target(group)->isend(std::move(tensor), dst, tag);
}
inline WorkPtr irecv(at::Tensor tensor, int src = kAnySource, int tag = 0, const Group& group = nullptr) {
  return functions_internal::Target(group)->irecv(std::move(tensor), src, tag);
}

// One tensor for each GPU of this rank; nccl.
inline WorkPtr broadcast_multigpu_async(Tensors tensors, int src, const Group& group = nullptr) {
  return functions_internal::Target(group)->broadcast_multigpu_async(std::move(tensors), src);
}
inline void broadcast_multigpu(Tensors tensors, int src, const Group& group = nullptr) {
  functions_internal::Target(group)->broadcast_multigpu_async(std::move(tensors), src)->wait();
}

inline WorkPtr all_reduce_multigpu_async(Tensors tensors, const Reduction& op = ReduceOp::kSum,
                                         const Group& group = nullptr) {
  return functions_internal::Target(group)->all_reduce_multigpu_async(std::move(tensors), op);
}
inline void all_reduce_multigpu(Tensors tensors, const Reduction& op = ReduceOp::kSum,
                                const Group& group = nullptr) {
  functions_internal::Target(group)->all_reduce_multigpu_async(std::move(tensors), op)->wait();
}

inline WorkPtr reduce_multigpu_async(Tensors tensors, int dst, const Reduction& op = ReduceOp::kSum,
                                     const Group& group = nullptr) {
  return functions_internal::Target(group)->reduce_multigpu_async(std::move(tensors), dst, op);
}
inline void reduce_multigpu(Tensors tensors, int dst, const Reduction& op = ReduceOp::kSum,
                            const Group& group = nullptr) {
  functions_internal::Target(group)->reduce_multigpu_async(std::move(tensors), dst, op)->wait();
}

inline WorkPtr all_gather_multigpu_async(std::vector<Tensors> lists, Tensors tensors,
                                         const Group& group = nullptr) {
  return functions_internal::Target(group)->all_gather_multigpu_async(std::move(lists), std::move(tensors));
}
inline void all_gather_multigpu(std::vector<Tensors> lists, Tensors tensors, const Group& group = nullptr) {
  functions_internal::Target(group)->all_gather_multigpu_async(std::move(lists), std::move(tensors))->wait();
}

}  // namespace gradwire::collectives
