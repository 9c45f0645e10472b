#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/collectives/backend.h"
#include "gradwire/collectives/coalesced_call.h"
#include "gradwire/collectives/reduce_op.h"
#include "gradwire/collectives/work.h"
#include "gradwire/security/security_options.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::collectives {

// The source of a receive that accepts a message from any rank.
inline constexpr int kAnySource = -1;
// The default timeout of operations, as in torch.distributed.
inline constexpr absl::Duration kDefaultTimeout = absl::Minutes(30);

// Options for making the world: the backend, how the ranks find one another, and the limits of operations.
struct ProcessGroupOptions {
  // "cpu" ("gloo", "tcp"), "mpi" or "nccl"; empty: "cpu", and in a CUDA build "nccl" for CUDA tensors.
  std::string backend;
  // The init method (store/init/init_method.h). Used if no `store` is given.
  std::string init_method = "env://";
  // The limit for making the group, and for each of its operations.
  absl::Duration timeout = kDefaultTimeout;
  // -1: taken from the environment, the init method or MPI. Required with `store`.
  int world_size = -1;
  // This process's rank, 0..world_size-1; -1 as for world_size.
  int rank = -1;
  // Used instead of init_method. May be shared with other users: the group uses only keys with its own
  // prefix.
  std::shared_ptr<store::Store> store;
  // Groups with different names can use one address without seeing one another. Empty, or 1 to 128 characters
  // of A-Z a-z 0-9 _ . : -
  std::string group_name;
  // The CUDA device of this rank; -1: the device of the first tensor.
  int device_id = -1;
  // Options of the backend; an unknown name is InvalidArgument. cpu: "shared_memory" ("on" or "off"),
  // "transports" ("shm,tcp"), and numbers of bytes: "slot_bytes", "flat_bytes", "small_bytes",
  // "segment_bytes". docs/collectives.md has their meaning and defaults.
  std::map<std::string, std::string> options;
  // Compares operation, sequence number, shape, dtype and root over all ranks before each collective. The
  // error says which rank differs. Costs one small collective each time.
  bool check_consistency = false;
  // How the ranks prove that they belong to the job, to the store and, in the cpu backend, to one another.
  // NCCL and MPI have connections of their own, which it does not protect.
  SecurityOptions security = {};
};

// Options of a new group that may differ from those of the group in which it is made.
struct NewGroupOptions {
  // The limit for each operation; default: as in the group in which the new one is made.
  std::optional<absl::Duration> timeout;
  // Empty: the backend of the group in which the new one is made.
  std::string backend;
};

// One collective of objects, encoded as bytes (collectives/objects.h).
struct ObjectExchange {
  // The collective.
  enum class Kind {
    kBroadcast,  // The root's object goes to all.
    kAllGather,  // All objects go to all.
    kGather,     // All objects go to the root.
    kScatter,    // Each rank gets one of the root's objects.
  };
  // The collective to run.
  Kind kind = Kind::kBroadcast;
  // The root's rank in the world; ignored by kAllGather.
  int root = 0;
  // CPU tensors of bytes. kBroadcast: at the root, its object. kAllGather, kGather: this rank's object.
  // kScatter: at the root, one object for each rank. An undefined tensor stands for an object that could not
  // be encoded; it becomes an error on all ranks.
  std::vector<at::Tensor> sent;
  // Called with the tensors that this rank received: one for each rank of the group (kAllGather, and kGather
  // at the root), none (kGather elsewhere), or one. Runs on the operation's thread, before the operation
  // ends.
  std::function<absl::Status(std::vector<at::Tensor> received)> receive;
};

// A group of ranks that run collectives together: all ranks of a job (the world), or some of them. An object
// of this class is one member's handle.
//
// All members must call the group's collectives in the same order, with tensors of the same dtype and of
// matching shapes. A group runs one collective at a time, in the order of the calls of all threads. `src` and
// `dst` are ranks of the world, also inside a smaller group. Tensors may be strided, empty or without
// dimensions; results are written to the tensors given. Each NAME_async returns at once.
//
// Errors: an invalid argument (a wrong length, shape, dtype, device or rank) throws InvalidArgument before
// anything is sent. Every operation ends by the group's timeout: DeadlineExceeded names the ranks that did
// not arrive, Unavailable names the ranks that are gone. After such an error the group is broken: its
// operations fail with Aborted and the first reason. Other groups stay usable.
//
// The handle on a rank that is not a member of the group has rank() == -1. Its collectives do not touch the
// tensors, and the first one logs a warning. Thread-safe.
class ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  // The return type of NAME_async.
  using WorkPtr = std::shared_ptr<Work>;
  // One tensor for each rank, or for each GPU of this rank.
  using Tensors = std::vector<at::Tensor>;

  // Makes a world and joins it. Returns when all ranks have joined; several ranks may live in one process.
  // Throws Error: InvalidArgument for options that are invalid, or that differ between ranks (the message
  // names both ranks); the errors of the init method.
  static std::shared_ptr<ProcessGroup> create(const ProcessGroupOptions& options);
  // Leaves the group: operations of other ranks that wait for this rank fail with Unavailable.
  virtual ~ProcessGroup() = default;

  // This process's rank in this group; -1 if it is not a member.
  virtual int rank() const = 0;
  // Number of ranks in this group.
  virtual int size() const = 0;
  // The backend. If CPU and CUDA tensors have different backends, the backend of CPU tensors.
  virtual Backend backend() const = 0;
  // The members' ranks in the world, ascending: entry i belongs to this group's rank i.
  virtual const std::vector<int>& ranks() const = 0;
  // The name in messages: the world's group_name, or "world"; each group made in the world has its own name.
  virtual const std::string& name() const = 0;
  // The limit for each operation, counted from its turn in the group.
  virtual absl::Duration timeout() const = 0;

  // Makes a group of these members, given as ranks of the world (empty: all members). Every member of this
  // group must call it, in the same order and with the same arguments; else it throws InvalidArgument, which
  // names the rank that differs. Throws FailedPrecondition on a rank that is not a member of this group.
  std::shared_ptr<ProcessGroup> new_group(std::vector<int> ranks = {}, const NewGroupOptions& options = {}) {
    if (ranks.empty()) ranks = this->ranks();
    return new_groups({std::move(ranks)}, options).front();
  }
  // Makes one group for each list, as new_group, but the members compare their arguments only once. A list
  // may not be empty. The lists may have ranks in common. Returns the groups in the order of the lists. If a
  // group cannot be made, its members throw the reason, after the other groups were made; other ranks get
  // theirs. The members that threw have left all these groups.
  virtual std::vector<std::shared_ptr<ProcessGroup>> new_groups(std::vector<std::vector<int>> lists,
                                                                const NewGroupOptions& options = {}) = 0;

  // Copies the `tensor` of `src` to the `tensor` of every rank. As MPI_Bcast.
  virtual void broadcast(at::Tensor tensor, int src) = 0;
  // As broadcast, but returns at once.
  virtual WorkPtr broadcast_async(at::Tensor tensor, int src) = 0;
  // The `tensor` of `dst` becomes the reduction of all ranks' tensors, element by element; the other tensors
  // do not change. As MPI_Reduce.
  virtual void reduce(at::Tensor tensor, int dst, const Reduction& op = ReduceOp::kSum) = 0;
  // As reduce, but returns at once.
  virtual WorkPtr reduce_async(at::Tensor tensor, int dst, const Reduction& op = ReduceOp::kSum) = 0;
  // `tensor` becomes the reduction of all ranks' tensors, element by element; every rank gets the same bits.
  // As MPI_Allreduce. A sparse COO tensor may have other indices on each rank, and may be uncoalesced; its
  // shape, dtype and number of sparse dimensions must be the same. It becomes coalesced. Only for kSum, kAvg
  // and premul_sum.
  virtual void all_reduce(at::Tensor tensor, const Reduction& op = ReduceOp::kSum) = 0;
  // As all_reduce, but returns at once.
  virtual WorkPtr all_reduce_async(at::Tensor tensor, const Reduction& op = ReduceOp::kSum) = 0;
  // At `dst`, list[i] becomes rank i's `tensor`. `list`: at `dst`, size() tensors of the shape of `tensor`;
  // empty elsewhere. As MPI_Gather.
  virtual void gather(at::Tensor tensor, Tensors list = {}, int dst = 0) = 0;
  // As gather, but returns at once.
  virtual WorkPtr gather_async(at::Tensor tensor, Tensors list = {}, int dst = 0) = 0;
  // list[i] becomes rank i's `tensor`. `list`: size() tensors; list[i] has the shape of rank i's tensor. As
  // MPI_Allgather, or MPI_Allgatherv if the ranks' tensors have different shapes. An entry for this rank with
  // another shape is refused before anything is sent. With the cpu backend a rank whose entry for another
  // rank has a wrong number of bytes gets an error. On one host that is InvalidArgument, the other ranks get
  // their results, and the group stays usable.
  virtual void all_gather(Tensors list, at::Tensor tensor) = 0;
  // As all_gather, but returns at once.
  virtual WorkPtr all_gather_async(Tensors list, at::Tensor tensor) = 0;
  // `tensor` becomes list[rank()] of `src`. `list`: at `src`, size() tensors of the shape of `tensor`; empty
  // elsewhere. As MPI_Scatter.
  virtual void scatter(at::Tensor tensor, Tensors list = {}, int src = 0) = 0;
  // As scatter, but returns at once.
  virtual WorkPtr scatter_async(at::Tensor tensor, Tensors list = {}, int src = 0) = 0;
  // `output` becomes the reduction, over all ranks, of their list[rank()]. `list`: size() tensors of the
  // shape of `output`. As MPI_Reduce_scatter_block.
  virtual void reduce_scatter(at::Tensor output, Tensors list, const Reduction& op = ReduceOp::kSum) = 0;
  // As reduce_scatter, but returns at once.
  virtual WorkPtr reduce_scatter_async(at::Tensor output, Tensors list,
                                       const Reduction& op = ReduceOp::kSum) = 0;
  // outputs[i] becomes rank i's inputs[rank()]. Shapes may differ between pairs of ranks; the two ranks of a
  // pair must agree. As MPI_Alltoallv.
  virtual void all_to_all(Tensors outputs, Tensors inputs) = 0;
  // As all_to_all, but returns at once.
  virtual WorkPtr all_to_all_async(Tensors outputs, Tensors inputs) = 0;
  // Returns when all ranks have called it. As MPI_Barrier. `device_ids`: the CUDA devices to use, if the
  // backend needs one.
  virtual void barrier(const std::vector<int>& device_ids = {}) = 0;
  // As barrier, but returns at once: the Work ends when all ranks have called it.
  virtual WorkPtr barrier_async(const std::vector<int>& device_ids = {}) = 0;
  // A barrier that fails with DeadlineExceeded at its `timeout` (default: the group's timeout) and leaves the
  // group usable. The message names every rank that did not arrive, or only the first one if `wait_all_ranks`
  // is false, as in torch.distributed.
  virtual void monitored_barrier(std::optional<absl::Duration> timeout = std::nullopt,
                                 bool wait_all_ranks = true) = 0;

  // As all_gather. `output`: size() times the elements of `input`; the ranks' parts are concatenated along
  // dimension 0, or stacked, as the shape of `output` says.
  virtual void all_gather_into_tensor(at::Tensor output, at::Tensor input) = 0;
  // As all_gather_into_tensor, but returns at once.
  virtual WorkPtr all_gather_into_tensor_async(at::Tensor output, at::Tensor input) = 0;
  // `output` becomes part rank() of the reduction of all ranks' `input`. `input`: size() parts of the shape
  // of `output`, concatenated along dimension 0 or stacked.
  virtual void reduce_scatter_tensor(at::Tensor output, at::Tensor input,
                                     const Reduction& op = ReduceOp::kSum) = 0;
  // As reduce_scatter_tensor, but returns at once.
  virtual WorkPtr reduce_scatter_tensor_async(at::Tensor output, at::Tensor input,
                                              const Reduction& op = ReduceOp::kSum) = 0;
  // As all_to_all, with one tensor that is divided along dimension 0. `output_splits` and `input_splits`:
  // number of rows for each rank; empty: equal parts.
  virtual void all_to_all_single(at::Tensor output, at::Tensor input,
                                 const std::vector<int64_t>& output_splits = {},
                                 const std::vector<int64_t>& input_splits = {}) = 0;
  // As all_to_all_single, but returns at once.
  virtual WorkPtr all_to_all_single_async(at::Tensor output, at::Tensor input,
                                          const std::vector<int64_t>& output_splits = {},
                                          const std::vector<int64_t>& input_splits = {}) = 0;

  // Runs these collectives as one operation of the group: begun together, with one end. All tensors are on
  // one device, and no tensor of a call may share memory with an output of another. Every rank gives the same
  // calls in the same order. Small tensors in the memory of the host travel together in one buffer; NCCL gets
  // up to 64 calls as one group.
  virtual void coalesced(std::vector<CoalescedCall> calls) = 0;
  // As coalesced, but returns at once.
  virtual WorkPtr coalesced_async(std::vector<CoalescedCall> calls) = 0;

  // Point-to-point send; `tag` is 0 or more. Returns when the caller may change `tensor` again. For a small
  // tensor that is at once. A large tensor (over 64 KiB with the cpu backend) waits until the receiver has
  // called recv. So two ranks that both send a large tensor to the other before they receive wait until the
  // timeout: let one of them receive first, or use isend.
  virtual void send(at::Tensor tensor, int dst, int tag = 0) = 0;
  // Waits for a message with this tag and returns the sender's rank in the world. `src` may be kAnySource, if
  // the backend supports that.
  virtual int recv(at::Tensor tensor, int src = kAnySource, int tag = 0) = 0;
  // As send, but returns at once; `tensor` must not change before the Work has ended. As MPI_Isend.
  virtual WorkPtr isend(at::Tensor tensor, int dst, int tag = 0) = 0;
  // As recv, but returns at once; Work::source_rank() returns the sender. As MPI_Irecv.
  virtual WorkPtr irecv(at::Tensor tensor, int src = kAnySource, int tag = 0) = 0;
  // Throws what isend would throw for these arguments (InvalidArgument, and FailedPrecondition after
  // destroy()), and what its Work would report because the backend has no such message. Sends nothing.
  virtual void check_isend(const at::Tensor& tensor, int dst, int tag = 0) const = 0;
  // As check_isend, for irecv.
  virtual void check_irecv(const at::Tensor& tensor, int src = kAnySource, int tag = 0) const = 0;

  // The multigpu operations take one tensor for each GPU of this rank; every rank must give the same number.
  // Only the nccl backend has them; others throw InvalidArgument. This one copies tensors[0] of `src` to all
  // tensors of all ranks.
  virtual WorkPtr broadcast_multigpu_async(Tensors tensors, int src) = 0;
  // Every tensor of every rank becomes the reduction of all of them.
  virtual WorkPtr all_reduce_multigpu_async(Tensors tensors, const Reduction& op = ReduceOp::kSum) = 0;
  // tensors[0] of `dst` becomes the reduction of all tensors of all ranks.
  virtual WorkPtr reduce_multigpu_async(Tensors tensors, int dst, const Reduction& op = ReduceOp::kSum) = 0;
  // lists[i][rank * tensors.size() + j] becomes tensors[j] of that rank.
  virtual WorkPtr all_gather_multigpu_async(std::vector<Tensors> lists, Tensors tensors) = 0;

  // Runs a collective of objects for collectives/objects.h, which describes the errors.
  virtual void exchange_objects(ObjectExchange exchange) = 0;
  // As exchange_objects, but returns at once.
  virtual WorkPtr exchange_objects_async(ObjectExchange exchange) = 0;

  // Ends the operations under way, also on the other members if the backend supports that. They and all later
  // operations fail with Aborted and `reason`.
  virtual void abort(const std::string& reason) = 0;
  // The last operations, newest last, one line each: sequence number, operation, shape, dtype, state, times.
  virtual std::string flight_record() const = 0;
  // Leaves the group, and destroys the groups made in it. Operations under way get
  // timeout() to end, then they are aborted. Later operations throw FailedPrecondition. Idempotent. Throws
  // FailedPrecondition if a callback of one of the group's own futures calls it.
  virtual void destroy() = 0;
};

}  // namespace gradwire::collectives
