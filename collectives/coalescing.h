#pragma once

// Several collectives as one operation, and several messages at once, as in torch.distributed. The operations
// begin together and there is one end to wait for. This is faster than one operation after the other if the
// tensors are small: the cpu and mpi backends copy small tensors into one buffer, and NCCL gets up to 64
// calls as one group (two groups, if some of them are bitwise reductions).
//
// The calls are independent: no tensor of a call may share memory with an output of another. The tensors may
// have different shapes and dtypes, but are all on one device. Every rank gives the same calls in the same
// order. `group`: nullptr is the world. Errors are thrown as Error, as by the collectives themselves; the
// message says which call is wrong. Each NAME_async returns at once. On a rank that is not a member
// nothing is sent or written; lists with contradictory lengths are refused there too.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/world.h"

namespace gradwire::collectives {

// Each tensor becomes the reduction of the ranks' tensors at the same place of the list.
void all_reduce_coalesced(std::vector<at::Tensor> tensors, const Reduction& op = ReduceOp::kSum,
                          const Group& group = nullptr);
// As all_reduce_coalesced, but returns at once.
std::shared_ptr<Work> all_reduce_coalesced_async(std::vector<at::Tensor> tensors,
                                                 const Reduction& op = ReduceOp::kSum,
                                                 const Group& group = nullptr);
// lists[rank][i] becomes tensors[i] of that rank. `lists`: one list for each rank, as long as `tensors`.
void all_gather_coalesced(const std::vector<std::vector<at::Tensor>>& lists, std::vector<at::Tensor> tensors,
                          const Group& group = nullptr);
// As all_gather_coalesced, but returns at once.
std::shared_ptr<Work> all_gather_coalesced_async(const std::vector<std::vector<at::Tensor>>& lists,
                                                 std::vector<at::Tensor> tensors,
                                                 const Group& group = nullptr);
// outputs[i] becomes the reduction, over all ranks, of their lists[i][this rank].
void reduce_scatter_coalesced(std::vector<at::Tensor> outputs, std::vector<std::vector<at::Tensor>> lists,
                              const Reduction& op = ReduceOp::kSum, const Group& group = nullptr);
// As reduce_scatter_coalesced, but returns at once.
std::shared_ptr<Work> reduce_scatter_coalesced_async(std::vector<at::Tensor> outputs,
                                                     std::vector<std::vector<at::Tensor>> lists,
                                                     const Reduction& op = ReduceOp::kSum,
                                                     const Group& group = nullptr);
// all_gather_into_tensor(outputs[i], inputs[i]) for all i.
void all_gather_into_tensor_coalesced(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                      const Group& group = nullptr);
// As all_gather_into_tensor_coalesced, but returns at once.
std::shared_ptr<Work> all_gather_into_tensor_coalesced_async(std::vector<at::Tensor> outputs,
                                                             std::vector<at::Tensor> inputs,
                                                             const Group& group = nullptr);
// reduce_scatter_tensor(outputs[i], inputs[i], op) for all i.
void reduce_scatter_tensor_coalesced(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                     const Reduction& op = ReduceOp::kSum, const Group& group = nullptr);
// As reduce_scatter_tensor_coalesced, but returns at once.
std::shared_ptr<Work> reduce_scatter_tensor_coalesced_async(std::vector<at::Tensor> outputs,
                                                            std::vector<at::Tensor> inputs,
                                                            const Reduction& op = ReduceOp::kSum,
                                                            const Group& group = nullptr);

// Collects collectives of one group, and begins them together. start() or run() begins them and empties the
// manager, which can then be used again; collectives that are collected when it is destroyed are dropped, on
// this rank only. Not thread-safe. It keeps the group alive.
//
//   CoalescingManager together(group);
//   together.all_reduce(loss);
//   together.broadcast(step, group->ranks()[0]);
//   std::shared_ptr<Work> work = together.start();
class CoalescingManager {
 public:
  // Collects collectives of `group`; nullptr: the world.
  explicit CoalescingManager(const Group& group = nullptr) : group_(group_or_world(group)) {}

  // As the collective with this name.
  void all_reduce(at::Tensor tensor, const Reduction& op = ReduceOp::kSum);
  // As the collective with this name.
  void broadcast(at::Tensor tensor, int src);
  // As the collective with this name.
  void all_gather(std::vector<at::Tensor> list, at::Tensor tensor);
  // As the collective with this name.
  void all_gather_into_tensor(at::Tensor output, at::Tensor input);
  // As the collective with this name.
  void reduce_scatter(at::Tensor output, std::vector<at::Tensor> list, const Reduction& op = ReduceOp::kSum);
  // As the collective with this name.
  void reduce_scatter_tensor(at::Tensor output, at::Tensor input, const Reduction& op = ReduceOp::kSum);
  // As the collective with this name.
  void all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs);

  // Number of collectives that were collected.
  std::size_t size() const { return calls_.size(); }
  // Begins the collectives and returns at once. Without collectives the Work has ended.
  std::shared_ptr<Work> start();
  // As start(), and waits for the end.
  void run();

 private:
  const Group group_;
  std::vector<CoalescedCall> calls_;
};

// One message of batch_isend_irecv.
struct P2POp {
  // The direction, from this rank.
  enum class Kind {
    kSend,     // This rank sends the tensor.
    kReceive,  // This rank receives into the tensor.
  };
  // Whether the message is sent or received.
  Kind kind = Kind::kSend;
  // The tensor that is sent, or written.
  at::Tensor tensor;
  // The other end, a rank of the world; kAnySource if this is a receive from any rank.
  int peer = kAnySource;
  // As in isend.
  int tag = 0;
  // nullptr is the world.
  Group group;
};

// Begins all these messages, and returns their handles in the same order. The receives begin first, so that
// ranks in a ring, each of which sends to the next one, never wait for one another, whatever the order and
// the size of their messages. Messages with one tag from one rank keep the order of the list. All messages
// are checked before the first one begins. Errors then: InvalidArgument if the list is empty, if the messages
// are of different groups, or if a message has a wrong argument or is one that the backend does not have; the
// error says which one. FailedPrecondition if the group has been destroyed.
std::vector<std::shared_ptr<Work>> batch_isend_irecv(const std::vector<P2POp>& messages);

}  // namespace gradwire::collectives
