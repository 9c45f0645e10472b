#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {

// The part of an operation that a backend has enqueued on a device and that may still run there.
class Enqueued {
 public:
  virtual ~Enqueued() = default;
  // The result on the device; nullopt while the operation still runs there.
  virtual std::optional<absl::Status> ended() const = 0;
  // Makes the calling thread's current stream wait for the operation; does not block the host.
  virtual void order_current_stream() = 0;
};

// The collectives with one tensor for each of this rank's devices. Every rank has the same number of tensors.
// All tensors have one shape and dtype, are contiguous, and are on different devices. `op` may have a factor
// (premul_sum). Called in the same way as GroupBackend's collectives.
class MultiDevice {
 public:
  virtual ~MultiDevice() = default;

  // All tensors of all ranks become tensors[0] of `root`.
  virtual absl::Status broadcast(std::vector<at::Tensor> tensors, int root, absl::Time deadline) = 0;
  // Every tensor becomes the reduction of all tensors of all ranks.
  virtual absl::Status all_reduce(std::vector<at::Tensor> tensors, const Reduction& op,
                                  absl::Time deadline) = 0;
  // tensors[0] of `root` becomes the reduction of all tensors of all ranks.
  virtual absl::Status reduce(std::vector<at::Tensor> tensors, int root, const Reduction& op,
                              absl::Time deadline) = 0;
  // outputs[i][rank * tensors.size() + j] becomes tensors[j] of that rank, on the device of tensors[i].
  virtual absl::Status all_gather(std::vector<std::vector<at::Tensor>> outputs,
                                  std::vector<at::Tensor> tensors, absl::Time deadline) = 0;
};

// One member's end of one group over one backend. ProcessGroup calls it after it has checked the arguments.
// The destructor leaves the group: operations under way on this rank fail, and members that wait for this
// rank are notified.
//
// All ranks are ranks of the group. Tensors are contiguous, have one dtype in each call, and are on the
// device that the backend serves. The number and shapes of list entries have been checked. ProcessGroup has
// done the premultiplication of premul_sum; `op` may be kAvg. Collectives are called one at a time, in the
// same order by all members. They return when the result is complete, or when the operation is enqueued on a
// device (see take_enqueued). Deadlines are times of Clock::system().
//
// Errors: DeadlineExceeded, Unavailable or Aborted; the message names the ranks (of the group, as "rank 3")
// that did not arrive or are gone. After one of these errors the group is broken: every other operation fails
// with Aborted and the first reason.
class GroupBackend {
 public:
  virtual ~GroupBackend() = default;

  // Copies the `tensor` of `root` to the `tensor` of every rank.
  virtual absl::Status broadcast(at::Tensor tensor, int root, absl::Time deadline) = 0;
  // The `tensor` of `root` becomes the reduction of all ranks' tensors; the other tensors do not change.
  virtual absl::Status reduce(at::Tensor tensor, int root, const Reduction& op, absl::Time deadline) = 0;
  // `tensor` becomes the reduction of all ranks' tensors; every rank gets the same bits.
  virtual absl::Status all_reduce(at::Tensor tensor, const Reduction& op, absl::Time deadline) = 0;
  // At `root`, outputs[i] becomes rank i's `tensor`; on the other ranks `outputs` is empty.
  virtual absl::Status gather(at::Tensor tensor, std::vector<at::Tensor> outputs, int root,
                              absl::Time deadline) = 0;
  // outputs[i] becomes rank i's `tensor`.
  virtual absl::Status all_gather(at::Tensor tensor, std::vector<at::Tensor> outputs,
                                  absl::Time deadline) = 0;
  // As all_gather; the ranks' tensors may have different sizes, and outputs[i] has the size of rank i's
  // tensor. A rank whose list has a wrong size gets InvalidArgument, if the backend finds that. This one runs
  // an all_to_all, in which each rank sends its tensor to all.
  virtual absl::Status all_gather_uneven(at::Tensor tensor, std::vector<at::Tensor> outputs,
                                         absl::Time deadline);
  // `tensor` becomes this rank's entry of `inputs` at `root`; on the other ranks `inputs` is empty.
  virtual absl::Status scatter(at::Tensor tensor, std::vector<at::Tensor> inputs, int root,
                               absl::Time deadline) = 0;
  // `output` becomes the reduction, over all ranks, of their inputs[this rank].
  virtual absl::Status reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs, const Reduction& op,
                                      absl::Time deadline) = 0;
  // outputs[i] becomes rank i's inputs[this rank]. Tensors may differ in size and may be empty; the size that
  // rank i sends to rank j is the size that j expects from i.
  virtual absl::Status all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                  absl::Time deadline) = 0;
  // Returns when all ranks have called it.
  virtual absl::Status barrier(absl::Time deadline) = 0;
  // As barrier. `device_ids`: the CUDA devices to use, for backends that need one.
  virtual absl::Status barrier_on(const std::vector<int>& device_ids, absl::Time deadline) {
    return barrier(deadline);
  }
  // As all_gather; `output` is contiguous and holds the parts of the `size` ranks one after the other. This
  // and the next two methods are implemented with views and the list forms; backends may override them.
  virtual absl::Status all_gather_into_tensor(at::Tensor output, at::Tensor input, int size,
                                              absl::Time deadline);
  // As reduce_scatter; `input` is contiguous and holds the parts of the `size` ranks one after the other.
  virtual absl::Status reduce_scatter_tensor(at::Tensor output, at::Tensor input, const Reduction& op,
                                             int size, absl::Time deadline);
  // As all_to_all; both tensors are contiguous, and their splits give the number of rows for each rank.
  virtual absl::Status all_to_all_single(at::Tensor output, at::Tensor input,
                                         const std::vector<int64_t>& output_splits,
                                         const std::vector<int64_t>& input_splits, absl::Time deadline);

  // Runs `calls`, each of which calls one collective of this backend for tensors on `device`. A backend may
  // begin them together. The calls are independent of each other. Returns the first error; the calls after it
  // need not run. This one runs them one after the other.
  virtual absl::Status together(c10::Device device, const std::vector<std::function<absl::Status()>>& calls);

  // Whether messages with tensors on `device` to or from this rank of the group, or from any rank (-1), are
  // possible. InvalidArgument if not. The default: all are.
  virtual absl::Status check_peer(c10::Device device, int peer) const { return absl::OkStatus(); }
  // Point-to-point send. May be called from any thread, also while a collective runs. The caller must not
  // change the tensor before the future is done.
  virtual Future<void> send(at::Tensor tensor, int dst, int tag, absl::Time deadline) = 0;
  // Point-to-point receive, called as send. The value is the sender's rank; `src` -1 receives from any rank.
  virtual Future<int> receive(at::Tensor tensor, int src, int tag, absl::Time deadline) = 0;
  // Sends without a future, if the send can end at once or within some microseconds, with no part enqueued on
  // a device. nullopt: it cannot, and nothing was sent.
  virtual std::optional<absl::Status> try_send(const at::Tensor& tensor, int dst, int tag) {
    return std::nullopt;
  }
  // Receives without a future, in the same way: returns the sender's rank, or nullopt if no message has
  // arrived yet.
  virtual std::optional<absl::StatusOr<int>> try_receive(const at::Tensor& tensor, int src, int tag) {
    return std::nullopt;
  }

  // Ends the operations under way on this rank and, as far as the backend can, on the other members. From now
  // on every operation fails with `reason`. May be called from any thread, also while a collective runs.
  virtual void abort(const absl::Status& reason) = 0;
  // The part of the calling thread's last operation that is enqueued on a device; nullptr if the operation
  // had ended when it returned.
  virtual std::unique_ptr<Enqueued> take_enqueued() { return nullptr; }
  // The multi-device collectives; nullptr if the backend serves only one device for each rank.
  virtual MultiDevice* multi_device() { return nullptr; }
  // State that groups made inside this one share with it: it becomes their BackendContext::world_state.
  virtual std::shared_ptr<void> world_state() { return nullptr; }
};

}  // namespace gradwire::collectives
