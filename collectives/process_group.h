#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/collectives/backend.h"
#include "gradwire/collectives/reduce_op.h"
#include "gradwire/collectives/work.h"
#include "gradwire/store/store.h"

namespace gradwire::collectives {

// As the source of a receive: a message from any rank.
inline constexpr int kAnySource = -1;
// How long an operation may take unless the options say otherwise, as in torch.distributed.
inline constexpr absl::Duration kDefaultTimeout = absl::Minutes(30);

// How a group comes together, and over what.
struct ProcessGroupOptions {
  // "cpu" ("gloo", "tcp"), "mpi" or "nccl"; empty: "cpu", and in a CUDA build "nccl" for CUDA tensors.
  std::string backend;
  // See store/init_method.h. Used when there is no store.
  std::string init_method = "env://";
  // Of every operation, and of coming together.
  absl::Duration timeout = kDefaultTimeout;
  // -1: from the environment, the init method or MPI. Required with `store`.
  int world_size = -1;
  // This process's rank, 0..world_size-1; -1 as for world_size.
  int rank = -1;
  // Instead of init_method. May be shared with others: the group keeps to keys of its own.
  std::shared_ptr<store::Store> store;
  // Groups of different names at one address do not see one another. Empty, or 1 to 128 characters of A-Z a-z
  // 0-9 _ . : -
  std::string group_name;
  // The CUDA device of this rank; -1: chosen by the first tensor.
  int device_id = -1;
  // Per backend; unknown names are InvalidArgument. cpu: "shared_memory" = "off", "transports" = "tcp",
  // "slot_bytes", "flat_bytes" (docs/collectives.md).
  std::map<std::string, std::string> options;
  // Compares operation, sequence number, shape, dtype and root over all ranks before each collective: the
  // error says which rank differs. Costs a small collective each time.
  bool check_consistency = false;
};

// What a group made inside the world does in another way than the world.
struct NewGroupOptions {
  // The world's unless given.
  std::optional<absl::Duration> timeout;
  // Empty: the world's.
  std::string backend;
};

// How objects travel, in bytes (collectives/objects.h).
struct ObjectExchange {
  // The collective that the exchange is.
  enum class Kind {
    kBroadcast,  // The root's object goes to all.
    kAllGather,  // All objects go to all.
    kGather,     // All objects go to the root.
    kScatter,    // One object of the root's goes to each.
  };
  // Which one.
  Kind kind = Kind::kBroadcast;
  // The rank of the world.
  int root = 0;
  // CPU tensors of bytes: of the root's object (kBroadcast), of this rank's (kAllGather, kGather), at the
  // root one for each rank (kScatter). An undefined tensor stands for an object that could not be encoded: an
  // error on all ranks.
  std::vector<at::Tensor> sent;
  // Called with what arrived, one for each rank of the group or one: before the operation is over, on the
  // thread that runs it.
  std::function<absl::Status(std::vector<at::Tensor> received)> receive;
};

// The ranks of a job that do things together, or a part of them: one member's handle.
//
// Collectives are called by all members of the group in the same order, with tensors of the same dtype and of
// shapes that fit; one at a time in each group, whoever calls. `src` and `dst` are ranks of the world, also
// inside a group. Tensors may be strided, empty or without dimensions; results come to the tensors given.
// What cannot be right (a wrong length, shape, dtype, device or rank) throws InvalidArgument before anything
// is sent. Every operation ends by the group's timeout: DeadlineExceeded names the ranks that did not arrive,
// Unavailable those that are gone. After such an error the group is broken: its operations fail with Aborted
// and the first reason; other groups go on.
//
// A handle of a group of which this rank is no member has rank() == -1; its collectives leave the tensors
// alone and warn once. Each NAME_async returns at once; operations of one group run in the order of their
// calls. Thread-safe.
class ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  // What NAME_async returns.
  using WorkPtr = std::shared_ptr<Work>;
  // One tensor for each rank, or for each GPU of this rank.
  using Tensors = std::vector<at::Tensor>;

  // Returns when all ranks have joined; several ranks may live in one process. Throws Error: InvalidArgument
  // for options that cannot be right, or that differ between ranks (both are named); what the init method
  // throws.
  static std::shared_ptr<ProcessGroup> create(const ProcessGroupOptions& options);
  // Others see this rank leave: what they wait for from it fails with Unavailable.
  virtual ~ProcessGroup() = default;

  // In this group; -1 where this rank is no member.
  virtual int rank() const = 0;
  // Number of ranks in this group.
  virtual int size() const = 0;
  // The backend; where CPU and CUDA tensors have one each, that of CPU tensors.
  virtual Backend backend() const = 0;
  // The ranks of the world, ascending; this group's rank i is the i-th.
  virtual const std::vector<int>& ranks() const = 0;
  // For messages: the world's group_name, or "world"; groups made in the world have names of their own.
  virtual const std::string& name() const = 0;
  // How long each operation may take from when its turn in the group comes.
  virtual absl::Duration timeout() const = 0;

  // Entered by every rank of the world in the same order with the same list (empty: all), else an Error that
  // names the rank that differs. Of the world alone.
  virtual std::shared_ptr<ProcessGroup> new_group(std::vector<int> ranks = {},
                                                  const NewGroupOptions& options = {}) = 0;

  // Every rank's `tensor` becomes that of `src`. As MPI_Bcast.
  virtual void broadcast(at::Tensor tensor, int src) = 0;
  // As broadcast, but returns at once.
  virtual WorkPtr broadcast_async(at::Tensor tensor, int src) = 0;
  // `tensor` at `dst` becomes the reduction of all ranks', element by element; the others' stay as they were.
  // As MPI_Reduce.
  virtual void reduce(at::Tensor tensor, int dst, const Reduction& op = ReduceOp::kSum) = 0;
  // As reduce, but returns at once.
  virtual WorkPtr reduce_async(at::Tensor tensor, int dst, const Reduction& op = ReduceOp::kSum) = 0;
  // `tensor` becomes the reduction of all ranks', element by element: the same bits everywhere. As
  // MPI_Allreduce.
  virtual void all_reduce(at::Tensor tensor, const Reduction& op = ReduceOp::kSum) = 0;
  // As all_reduce, but returns at once.
  virtual WorkPtr all_reduce_async(at::Tensor tensor, const Reduction& op = ReduceOp::kSum) = 0;
  // At `dst` list[i] becomes rank i's `tensor`. `list`: size() tensors of the shape of `tensor`, at `dst`
  // alone. As MPI_Gather.
  virtual void gather(at::Tensor tensor, Tensors list = {}, int dst = 0) = 0;
  // As gather, but returns at once.
  virtual WorkPtr gather_async(at::Tensor tensor, Tensors list = {}, int dst = 0) = 0;
  // list[i] becomes rank i's `tensor`. `list`: size() tensors of the shape of `tensor`. As MPI_Allgather.
  virtual void all_gather(Tensors list, at::Tensor tensor) = 0;
  // As all_gather, but returns at once.
  virtual WorkPtr all_gather_async(Tensors list, at::Tensor tensor) = 0;
  // `tensor` becomes list[rank()] of `src`. `list`: size() tensors of the shape of `tensor`, at `src` alone.
  // As MPI_Scatter.
  virtual void scatter(at::Tensor tensor, Tensors list = {}, int src = 0) = 0;
  // As scatter, but returns at once.
  virtual WorkPtr scatter_async(at::Tensor tensor, Tensors list = {}, int src = 0) = 0;
  // `output` becomes the reduction of all ranks' list[rank()]. `list`: size() tensors of the shape of
  // `output`. As MPI_Reduce_scatter_block.
  virtual void reduce_scatter(at::Tensor output, Tensors list, const Reduction& op = ReduceOp::kSum) = 0;
  // As reduce_scatter, but returns at once.
  virtual WorkPtr reduce_scatter_async(at::Tensor output, Tensors list,
                                       const Reduction& op = ReduceOp::kSum) = 0;
  // outputs[i] becomes rank i's inputs[rank()]. Shapes may differ, where each pair agrees. As MPI_Alltoallv.
  virtual void all_to_all(Tensors outputs, Tensors inputs) = 0;
  // As all_to_all, but returns at once.
  virtual WorkPtr all_to_all_async(Tensors outputs, Tensors inputs) = 0;
  // Returns when all ranks have called it, as MPI_Barrier. `device_ids`: the CUDA devices to use, where the
  // backend needs one.
  virtual void barrier(const std::vector<int>& device_ids = {}) = 0;
  // As barrier, but returns at once: the Work ends when all ranks have come.
  virtual WorkPtr barrier_async(const std::vector<int>& device_ids = {}) = 0;
  // A barrier that at its timeout names every rank that did not come, and leaves the group usable.
  // `wait_all_ranks` as torch.distributed's: false names the first alone.
  virtual void monitored_barrier(std::optional<absl::Duration> timeout = std::nullopt,
                                 bool wait_all_ranks = true) = 0;

  // As all_gather. `output`: size() times `input`, one behind the other along dimension 0, or stacked.
  virtual void all_gather_into_tensor(at::Tensor output, at::Tensor input) = 0;
  // As all_gather_into_tensor, but returns at once.
  virtual WorkPtr all_gather_into_tensor_async(at::Tensor output, at::Tensor input) = 0;
  // `output` becomes the reduction of part rank() of all ranks' `input`, which is size() times `output` as
  // above.
  virtual void reduce_scatter_tensor(at::Tensor output, at::Tensor input,
                                     const Reduction& op = ReduceOp::kSum) = 0;
  // As reduce_scatter_tensor, but returns at once.
  virtual WorkPtr reduce_scatter_tensor_async(at::Tensor output, at::Tensor input,
                                              const Reduction& op = ReduceOp::kSum) = 0;
  // As all_to_all, with one tensor cut along dimension 0: splits empty: equal parts, else rows for each rank.
  virtual void all_to_all_single(at::Tensor output, at::Tensor input,
                                 const std::vector<int64_t>& output_splits = {},
                                 const std::vector<int64_t>& input_splits = {}) = 0;
  // As all_to_all_single, but returns at once.
  virtual WorkPtr all_to_all_single_async(at::Tensor output, at::Tensor input,
                                          const std::vector<int64_t>& output_splits = {},
                                          const std::vector<int64_t>& input_splits = {}) = 0;

  // Point to point; tags from 0 up. recv returns the rank that sent. send returns when `tensor` may be
  // changed again. For a small tensor that is at once. For a large one (over 64 KiB with the cpu backend) it
  // waits until the receiver asks for it. So two ranks that send each other large tensors before they receive
  // wait until the timeout: let one of them receive first, or use isend.
  virtual void send(at::Tensor tensor, int dst, int tag = 0) = 0;
  // Waits for a message with this tag and returns the rank of the world that sent it. `src` may be
  // kAnySource.
  virtual int recv(at::Tensor tensor, int src = kAnySource, int tag = 0) = 0;
  // As send, but returns at once; `tensor` must not change before the Work has ended. As MPI_Isend.
  virtual WorkPtr isend(at::Tensor tensor, int dst, int tag = 0) = 0;
  // As recv, but returns at once; Work::source_rank() says who sent. As MPI_Irecv.
  virtual WorkPtr irecv(at::Tensor tensor, int src = kAnySource, int tag = 0) = 0;

  // With one tensor for each GPU of this rank, equally many on every rank; of nccl alone, else
  // InvalidArgument. reduce: into tensors[0] of `dst`; all_gather: lists[i][rank * tensors.size() + j];
  // broadcast: from tensors[0] of `src`.
  virtual WorkPtr broadcast_multigpu_async(Tensors tensors, int src) = 0;
  // Every tensor of every rank becomes the reduction of all.
  virtual WorkPtr all_reduce_multigpu_async(Tensors tensors, const Reduction& op = ReduceOp::kSum) = 0;
  // tensors[0] of `dst` becomes the reduction of all.
  virtual WorkPtr reduce_multigpu_async(Tensors tensors, int dst, const Reduction& op = ReduceOp::kSum) = 0;
  // lists[i][rank * tensors.size() + j] becomes tensors[j] of that rank.
  virtual WorkPtr all_gather_multigpu_async(std::vector<Tensors> lists, Tensors tensors) = 0;

  // For collectives/objects.h, which says what it throws.
  virtual void exchange_objects(ObjectExchange exchange) = 0;
  // As exchange_objects, but returns at once.
  virtual WorkPtr exchange_objects_async(ObjectExchange exchange) = 0;

  // Ends what is under way, on the other members too where the backend can; everything fails with Aborted and
  // `reason`.
  virtual void abort(const std::string& reason) = 0;
  // The last operations, newest last, one line each: sequence number, operation, shape, dtype, state, times.
  virtual std::string flight_record() const = 0;
  // Leaves; a world takes the groups made in it along. What is under way is given timeout() to end, then
  // aborted. Afterwards operations throw FailedPrecondition. Idempotent; not from a callback of one of the
  // group's own futures (FailedPrecondition).
  virtual void destroy() = 0;
};

}  // namespace gradwire::collectives
