#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/future.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {

// What a device still does of an operation that a backend has enqueued.
class Enqueued {
 public:
  virtual ~Enqueued() = default;
  // Whether it has ended on the device, and how: none while it has not.
  virtual std::optional<absl::Status> ended() const = 0;
  // Orders the calling thread's current stream behind it; does not block the host.
  virtual void order_current_stream() = 0;
};

// The forms with one tensor for each of this rank's devices; equally many on every rank, all of one shape and
// dtype, each on another device, contiguous. `op` may multiply. Called as GroupBackend's collectives.
class MultiDevice {
 public:
  virtual ~MultiDevice() = default;

  // All tensors of all ranks become tensors[0] of `root`.
  virtual absl::Status broadcast(std::vector<at::Tensor> tensors, int root, absl::Time deadline) = 0;
  // Every tensor becomes the reduction of all tensors of all ranks.
  virtual absl::Status all_reduce(std::vector<at::Tensor> tensors, const Reduction& op,
                                  absl::Time deadline) = 0;
  // Into tensors[0] of `root`.
  virtual absl::Status reduce(std::vector<at::Tensor> tensors, int root, const Reduction& op,
                              absl::Time deadline) = 0;
  // outputs[i][rank * tensors.size() + j] becomes tensors[j] of that rank, on the device of tensors[i].
  virtual absl::Status all_gather(std::vector<std::vector<at::Tensor>> outputs,
                                  std::vector<at::Tensor> tensors, absl::Time deadline) = 0;
};

// One member's end of one group over one backend: what ProcessGroup calls when it has checked the arguments.
// Its destruction leaves the group: others that wait for this rank hear of it, and what is under way here
// fails.
//
// Ranks are those of the group. Tensors are contiguous, of one dtype in each call and of the device that the
// backend serves; list entries have been checked for number and shape. Premultiplication is done; kAvg may be
// there. Collectives are called one at a time, in the same order by all members; they return when the result
// is there, or when it is enqueued (take_enqueued). Errors: DeadlineExceeded, Unavailable or Aborted that
// name the ranks (of the group, as "rank 3") that did not arrive or are gone; after one of these the group is
// broken, and everything else fails with Aborted and the first reason. Deadlines are times of
// Clock::system().
class GroupBackend {
 public:
  virtual ~GroupBackend() = default;

  // `tensor` becomes that of `root`.
  virtual absl::Status broadcast(at::Tensor tensor, int root, absl::Time deadline) = 0;
  // `tensor` changes at the root alone.
  virtual absl::Status reduce(at::Tensor tensor, int root, const Reduction& op, absl::Time deadline) = 0;
  // `tensor` becomes the reduction of all ranks' tensors, the same bits everywhere.
  virtual absl::Status all_reduce(at::Tensor tensor, const Reduction& op, absl::Time deadline) = 0;
  // `outputs` is empty elsewhere than at the root.
  virtual absl::Status gather(at::Tensor tensor, std::vector<at::Tensor> outputs, int root,
                              absl::Time deadline) = 0;
  // outputs[i] becomes rank i's `tensor`.
  virtual absl::Status all_gather(at::Tensor tensor, std::vector<at::Tensor> outputs,
                                  absl::Time deadline) = 0;
  // `inputs` is empty elsewhere than at the root.
  virtual absl::Status scatter(at::Tensor tensor, std::vector<at::Tensor> inputs, int root,
                               absl::Time deadline) = 0;
  // `output` becomes the reduction of all ranks' inputs[this rank].
  virtual absl::Status reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs, const Reduction& op,
                                      absl::Time deadline) = 0;
  // Tensors may differ in size and be empty: what rank i sends to j is what j expects from i.
  virtual absl::Status all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                  absl::Time deadline) = 0;
  // Returns when all ranks have called it.
  virtual absl::Status barrier(absl::Time deadline) = 0;
  // `device_ids`: the CUDA devices to use; for backends that need one.
  virtual absl::Status barrier_on(const std::vector<int>& device_ids, absl::Time deadline) {
    return barrier(deadline);
  }
  // As all_gather and reduce_scatter; the big tensor is contiguous and holds the ranks' parts one behind the
  // other. What these do unless overridden is to call those with views.
  virtual absl::Status all_gather_into_tensor(at::Tensor output, at::Tensor input, int size,
                                              absl::Time deadline);
  // As reduce_scatter, with the ranks' parts in one contiguous `input`, one behind the other.
  virtual absl::Status reduce_scatter_tensor(at::Tensor output, at::Tensor input, const Reduction& op,
                                             int size, absl::Time deadline);
  // As all_to_all; both tensors are contiguous, and split into so many rows for each rank.
  virtual absl::Status all_to_all_single(at::Tensor output, at::Tensor input,
                                         const std::vector<int64_t>& output_splits,
                                         const std::vector<int64_t>& input_splits, absl::Time deadline);

  // Point to point, also while a collective runs, from any thread. The tensor is the backend's until the
  // future is done.
  virtual Future<void> send(at::Tensor tensor, int dst, int tag, absl::Time deadline) = 0;
  // The rank that it came from; `src` may be -1, any.
  virtual Future<int> receive(at::Tensor tensor, int src, int tag, absl::Time deadline) = 0;
  // The same where that is done at once, or in some microseconds, without a future; none: nothing has
  // happened.
  virtual std::optional<absl::Status> try_send(const at::Tensor& tensor, int dst, int tag) {
    return std::nullopt;
  }
  // As try_send: the rank that it came from, or none when no message is there yet.
  virtual std::optional<absl::StatusOr<int>> try_receive(const at::Tensor& tensor, int src, int tag) {
    return std::nullopt;
  }

  // Ends what is under way here and, as far as the backend can, at the other members; everything fails with
  // `reason` from now on. From any thread, also while a collective runs.
  virtual void abort(const absl::Status& reason) = 0;
  // What the calling thread's last collective left on a device; nullptr when it had ended.
  virtual std::unique_ptr<Enqueued> take_enqueued() { return nullptr; }
  // nullptr where there is but one device for each rank.
  virtual MultiDevice* multi_device() { return nullptr; }
  // What groups made inside this one share with it: becomes their BackendContext::world_state.
  virtual std::shared_ptr<void> world_state() { return nullptr; }
};

}  // namespace gradwire::collectives
