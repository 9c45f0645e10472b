#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/collectives/group/backend_registry.h"
#include "gradwire/collectives/group_backend.h"
#include "gradwire/collectives/nccl/device_work.h"
#include "gradwire/collectives/nccl/group_watch.h"
#include "gradwire/collectives/nccl/nccl_comms.h"

namespace gradwire::collectives::nccl {

// The collectives of one member, with a tensor for each of its devices, which may be one. Communicators are
// made by the first collective that needs them: one for one device of each rank, and one for several; later
// collectives must be on the same devices. Rank r of the group has the communicator's ranks r * devices, r *
// devices + 1, ...
//
// Each collective
//   1. is counted and given to the GroupWatch, unless its devices are refused;
//   2. makes the communicator if it is the first;
//   3. is enqueued on an internal stream of each device, behind its caller's current one;
//   4. leaves what is under way to LastWork, for GroupBackend::take_enqueued.
// Collectives come one at a time; comms() may be called from any thread.
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
  // As all_gather. outputs[i] may also be one tensor for all parts.
  absl::Status gather_parts(const char* what, const std::vector<Tensors>& outputs, const Tensors& tensors,
                            absl::Time deadline);
  // `output` becomes the reduction of this rank's part of `inputs`: a tensor for each rank, or one for all
  // parts.
  absl::Status reduce_parts(const char* what, const at::Tensor& output, const Tensors& inputs,
                            const Reduction& op, absl::Time deadline);

  struct Call {
    // "all_reduce"
    const char* what;
    std::vector<c10::Device> devices;
    // All that NCCL reads or writes of the caller's.
    Tensors tensors;
    // For each device, with the internal stream as the current one; may be empty.
    std::function<void(std::size_t)> before;
    std::function<void(std::size_t)> after;
    // As EnqueuedWork's.
    bool blocks = false;
  };
  // `body` calls NCCL for each device.
  absl::Status perform(const Call& call, absl::Time deadline, NcclComms::Call body);

  // The device of collectives with one; none before the first of them.
  std::optional<c10::Device> single_device() const;
  // All communicators that there are.
  std::vector<Comms> comms() const;

 private:
  // nullptr before there are any; InvalidArgument when they are on other devices.
  absl::StatusOr<Comms> existing(const std::vector<c10::Device>& devices) const;
  absl::StatusOr<Comms> comms_for(const std::vector<c10::Device>& devices, absl::Time deadline);
  absl::Status enqueue(const Call& call, DeviceWork& work, absl::Time deadline, NcclComms::Call body);
  absl::Status reduce_to(const char* what, const Tensors& tensors, std::optional<int> root,
                         const Reduction& op, absl::Time deadline);

  const BackendContext context_;
  const std::shared_ptr<GroupWatch> watch_;

  // Used by collectives alone, which come one at a time.
  int setups_ = 0;

  mutable Mutex mutex_;
  // With one device for each rank, and with several.
  Comms single_ ABSL_GUARDED_BY(mutex_);
  Comms several_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::collectives::nccl
