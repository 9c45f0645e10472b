#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/collectives/group_backend.h"
#include "gradwire/collectives/nccl/device_work.h"
#include "gradwire/collectives/nccl/group_watch.h"
#include "gradwire/collectives/nccl/nccl_comms.h"
#include "gradwire/collectives/registry/backend_registry.h"

namespace gradwire::collectives::nccl {

// The collectives of one member, with one tensor for each of its devices; it may have one device or several.
// There are two communicators: one for collectives with one device for each rank, and one for collectives
// with several. The first collective of each kind makes its communicator; later ones must use the same
// devices. With D devices for each rank, rank r of the group has D ranks of the communicator,
// from r * D on.
//
// Steps of a collective:
//   1. Check its devices. Then count it, and add it to the GroupWatch.
//   2. Make the communicator, if it is the first collective.
//   3. Enqueue it on an internal stream of each device, which waits for the caller's current stream.
//   4. Store the work under way in LastWork, for GroupBackend::take_enqueued.
// Collectives are called one at a time; comms() may be called from any thread.
class NcclCollectives final : public MultiDevice {
 public:
  using Comms = std::shared_ptr<NcclComms>;
  using Tensors = std::vector<at::Tensor>;

  NcclCollectives(const BackendContext& context, std::shared_ptr<GroupWatch> watch)
      : context_(context), watch_(std::move(watch)) {}

  absl::Status broadcast(Tensors tensors, int root, absl::Time deadline) override;
  absl::Status all_reduce(Tensors tensors, const Reduction& op, absl::Time deadline) override;
  absl::Status reduce(Tensors tensors, int root, const Reduction& op, absl::Time deadline) override;
  absl::Status all_gather(std::vector<Tensors> outputs, Tensors tensors, absl::Time deadline) override {
    return gather_parts("all_gather", outputs, tensors, deadline);
  }
  // As all_gather, but outputs[i] may also be one tensor that holds all parts.
  absl::Status gather_parts(const char* what, const std::vector<Tensors>& outputs, const Tensors& tensors,
                            absl::Time deadline);
  // `output` becomes the reduction, over all ranks, of this rank's part of their `inputs`. `inputs`: one
  // tensor for each rank, or one tensor that holds all parts.
  absl::Status reduce_parts(const char* what, const at::Tensor& output, const Tensors& inputs,
                            const Reduction& op, absl::Time deadline);

  // The description of one collective.
  struct Call {
    // The operation's name, for example "all_reduce".
    const char* what;
    std::vector<c10::Device> devices;
    // The caller's tensors that NCCL reads or writes.
    Tensors tensors;
    // Called for each device before and after `body`, with the internal stream as the current stream; may be
    // empty.
    std::function<void(std::size_t)> before;
    std::function<void(std::size_t)> after;
    // A second step, if `second` is not empty: after `body` has been enqueued, `between` and `second` are
    // called as `before` and `body`.
    std::function<void(std::size_t)> between;
    std::function<ncclResult_t(std::size_t, ncclComm_t, cudaStream_t)> second;
    // See EnqueuedWork.
    bool blocks = false;
  };
  // Runs a collective; `body` calls NCCL for each device.
  absl::Status perform(const Call& call, absl::Time deadline, NcclComms::Call body);

  // As GroupBackend::together: each of `calls` calls perform() once, and what they give to NCCL becomes one
  // group of NCCL's, with one end.
  absl::Status together(const std::vector<std::function<absl::Status()>>& calls);

  // The device of collectives with one device for each rank; nullopt before the first of them.
  std::optional<c10::Device> single_device() const;
  // The communicators that have been made.
  std::vector<Comms> comms() const;

 private:
  // The communicator for these devices; nullptr if it has not been made. InvalidArgument if it was made for
  // other devices.
  absl::StatusOr<Comms> existing(const std::vector<c10::Device>& devices) const;
  // As existing(), but makes the communicator if needed.
  absl::StatusOr<Comms> comms_for(const std::vector<c10::Device>& devices, absl::Time deadline);
  // A part of the calls of together(), while it runs.
  struct Together;
  // perform() for one of these calls.
  absl::Status join(const Call& call, absl::Time deadline, NcclComms::Call body);
  absl::Status enqueue(const Call& call, DeviceWork& work, absl::Time deadline, NcclComms::Call body);
  absl::Status reduce_to(const char* what, const Tensors& tensors, std::optional<int> root,
                         const Reduction& op, absl::Time deadline);
  // As reduce_to and reduce_parts, for operations that NCCL does not have (Plan::combined).
  absl::Status combine_all(const char* what, const Tensors& tensors, std::optional<int> root,
                           const Reduction& op, absl::Time deadline);
  absl::Status combine_parts(const char* what, const at::Tensor& output, const Tensors& inputs,
                             const Reduction& op, absl::Time deadline);

  const BackendContext context_;
  const std::shared_ptr<GroupWatch> watch_;

  // Number of attempts to make a communicator. Used only by collectives, which are called one at a time.
  int setups_ = 0;
  // Not nullptr while together() collects calls. Used only by collectives.
  Together* together_ = nullptr;

  mutable Mutex mutex_;
  // The communicators for one device for each rank, and for several.
  Comms single_ ABSL_GUARDED_BY(mutex_);
  Comms several_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::collectives::nccl
