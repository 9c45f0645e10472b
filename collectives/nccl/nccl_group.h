#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/collectives/group/backend_registry.h"
#include "gradwire/collectives/group_backend.h"
#include "gradwire/collectives/nccl/device_records.h"
#include "gradwire/collectives/nccl/device_work.h"
#include "gradwire/collectives/nccl/group_watch.h"
#include "gradwire/collectives/nccl/nccl_channel.h"
#include "gradwire/collectives/nccl/nccl_comms.h"
#include "gradwire/collectives/nccl/nccl_types.h"
#include "gradwire/collectives/nccl/watchdog.h"

namespace gradwire::collectives::nccl {

// A member's end of a group over NCCL. Communicators are made by the first operation that needs them: one for a device of
// each rank, which is that of the tensors and stays the same, and one for several. Every operation runs on an internal
// stream behind its caller's current one; what it does is enqueued when it returns.
//
// A collective that all have not entered within the deadline, a communicator that reports an error, a member whose process
// is gone or that has left: the watchdog ends all communicators and tells the others (GroupWatch).
class NcclGroup final : public GroupBackend {
 public:
  NcclGroup(const BackendContext& context, std::shared_ptr<Watchdog> watchdog);
  ~NcclGroup() override;

  absl::Status broadcast(at::Tensor tensor, int root, absl::Time deadline) override;
  absl::Status reduce(at::Tensor tensor, int root, const Reduction& op, absl::Time deadline) override;
  absl::Status all_reduce(at::Tensor tensor, const Reduction& op, absl::Time deadline) override;
  absl::Status gather(at::Tensor tensor, std::vector<at::Tensor> outputs, int root,
                      absl::Time deadline) override;
  absl::Status all_gather(at::Tensor tensor, std::vector<at::Tensor> outputs, absl::Time deadline) override;
  absl::Status scatter(at::Tensor tensor, std::vector<at::Tensor> inputs, int root,
                       absl::Time deadline) override;
  absl::Status reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs, const Reduction& op,
                              absl::Time deadline) override;
  absl::Status all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                          absl::Time deadline) override;
  // Whoever waits for it, or orders a stream behind it, waits on the host until all have come.
  absl::Status barrier(absl::Time deadline) override { return barrier_on({}, deadline); }
  absl::Status barrier_on(const std::vector<int>& device_ids, absl::Time deadline) override;
  absl::Status all_gather_into_tensor(at::Tensor output, at::Tensor input, int size,
                                      absl::Time deadline) override;
  absl::Status reduce_scatter_tensor(at::Tensor output, at::Tensor input, const Reduction& op, int size,
                                     absl::Time deadline) override;

  // Done when it is in a stream, which takes the other side's call. As NCCL has neither tags nor any source, each
  // direction and tag has a communicator of its own, in which messages keep their order; there may be 64 of them on a
  // rank, then ResourceExhausted. InvalidArgument for any source and for messages to oneself. NCCL does not compare the
  // sizes of the two sides.
  Future<void> send(at::Tensor tensor, int dst, int tag, absl::Time deadline) override;
  Future<int> receive(at::Tensor tensor, int src, int tag, absl::Time deadline) override;

  void abort(const absl::Status& reason) override { watch_->fail(reason); }
  bool enqueues(c10::DeviceType device) const override { return device == c10::kCUDA; }
  std::unique_ptr<Enqueued> take_enqueued() override;
  MultiDevice* multi_device() override { return multi_device_.get(); }
  std::shared_ptr<void> world_state() override { return watchdog_; }

  // One collective.
  struct Call {
    // "all_reduce"
    const char* what;
    // Where it runs; several for the multi-device forms.
    std::vector<c10::Device> devices;
    // All that NCCL reads or writes of the caller's.
    std::vector<at::Tensor> tensors;
    // For each device, with the internal stream as the current one; may be empty.
    std::function<void(std::size_t)> before;
    std::function<void(std::size_t)> after;
    std::function<ncclResult_t(std::size_t device, ncclComm_t comm, cudaStream_t stream)> body;
    bool blocks = false;
  };
  absl::Status perform(const Call& call, absl::Time deadline);
  int rank() const { return context_.rank; }

 private:
  using Comms = std::shared_ptr<NcclComms>;

  // nullptr before there are any; InvalidArgument when they are on other devices.
  absl::StatusOr<Comms> existing(const std::vector<c10::Device>& devices) const;
  absl::StatusOr<Comms> comms_for(const std::vector<c10::Device>& devices, absl::Time deadline);
  absl::StatusOr<Comms> make_comms(const std::string& key, const std::vector<c10::Device>& devices,
                                   absl::Time deadline);
  absl::Status enqueue(const Call& call, DeviceWork& work, absl::Time deadline);
  absl::StatusOr<std::shared_ptr<NcclChannel>> channel(int peer, bool sends, int tag, c10::Device device);
  absl::Status transfer(at::Tensor tensor, int peer, bool sends, int tag, absl::Time deadline,
                        const Promise<void>& ended);
  void remember(std::shared_ptr<DeviceWork> work, bool blocks);
  std::vector<Comms> all_comms() const;
  void leave();

  const BackendContext context_;
  const std::shared_ptr<Watchdog> watchdog_;
  const std::shared_ptr<GroupWatch> watch_;
  const std::unique_ptr<MultiDevice> multi_device_;

  // Of collectives, which come one at a time.
  int setups_ = 0;

  mutable Mutex mutex_;
  // With one device for each rank, and with several.
  Comms single_ ABSL_GUARDED_BY(mutex_);
  Comms several_ ABSL_GUARDED_BY(mutex_);
  // By peer, whether it sends, and tag.
  std::map<std::tuple<int, bool, int>, std::shared_ptr<NcclChannel>> channels_ ABSL_GUARDED_BY(mutex_);
};

std::unique_ptr<MultiDevice> make_multi_device(NcclGroup& group);

// What this process says of its devices. Throws CUDA's errors.
RankRecord own_record(const std::vector<c10::Device>& devices);

// The communicator's id, from its first rank to the others.
absl::StatusOr<ncclUniqueId> share_id(store::Store& store, const std::string& key, bool first,
                                      const Patience& patience);

// As NCCL takes them.
inline ncclDataType_t type_of(const Plan& plan) { return static_cast<ncclDataType_t>(plan.type); }
inline ncclRedOp_t op_of(const Plan& plan) { return static_cast<ncclRedOp_t>(plan.op); }
inline std::size_t count_of(const at::Tensor& tensor, const Plan& plan) {
  return static_cast<std::size_t>(tensor.numel() * plan.per_element);
}

// into.copy_(from), also for inference tensors.
void copy_values(const at::Tensor& from, const at::Tensor& into);
// As the plan has it: the tensor, or its values as int32.
at::Tensor widened(const at::Tensor& tensor, const Plan& plan);
// Uninitialised, of `parts` times the size of `part`, in one dimension.
at::Tensor flat_like(const at::Tensor& part, std::size_t parts);
// The part at `index` in the shape of `part`.
at::Tensor part_of(const at::Tensor& flat, const at::Tensor& part, std::size_t index);

}  // namespace gradwire::collectives::nccl
