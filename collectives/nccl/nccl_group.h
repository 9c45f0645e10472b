#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "gradwire/collectives/group_backend.h"
#include "gradwire/collectives/nccl/group_watch.h"
#include "gradwire/collectives/nccl/nccl_collectives.h"
#include "gradwire/collectives/nccl/nccl_messages.h"
#include "gradwire/collectives/nccl/nccl_types.h"
#include "gradwire/collectives/nccl/watchdog.h"
#include "gradwire/collectives/registry/backend_registry.h"

namespace gradwire::collectives::nccl {

// A member's end of a group over NCCL. Operations return when they are enqueued on the device
// (NcclCollectives, NcclMessages).
//
// The watchdog (GroupWatch) ends all communicators and notifies the other members if an operation does not
// end before its deadline, if a communicator reports an error, or if an operation needs a member whose
// process has ended or that has left.
class NcclGroup final : public GroupBackend {
 public:
  using Tensors = std::vector<at::Tensor>;

  NcclGroup(const BackendContext& context, std::shared_ptr<Watchdog> watchdog);
  ~NcclGroup() override;

  absl::Status broadcast(at::Tensor tensor, int root, absl::Time deadline) override {
    return collectives_.broadcast({tensor}, root, deadline);
  }
  absl::Status reduce(at::Tensor tensor, int root, const Reduction& op, absl::Time deadline) override {
    return collectives_.reduce({tensor}, root, op, deadline);
  }
  absl::Status all_reduce(at::Tensor tensor, const Reduction& op, absl::Time deadline) override {
    return collectives_.all_reduce({tensor}, op, deadline);
  }
  absl::Status gather(at::Tensor tensor, Tensors outputs, int root, absl::Time deadline) override;
  absl::Status all_gather(at::Tensor tensor, Tensors outputs, absl::Time deadline) override {
    return collectives_.all_gather({outputs}, {tensor}, deadline);
  }
  absl::Status scatter(at::Tensor tensor, Tensors inputs, int root, absl::Time deadline) override;
  absl::Status reduce_scatter(at::Tensor output, Tensors inputs, const Reduction& op,
                              absl::Time deadline) override {
    return collectives_.reduce_parts("reduce_scatter", output, inputs, op, deadline);
  }
  absl::Status all_to_all(Tensors outputs, Tensors inputs, absl::Time deadline) override;
  // Waiting for the barrier, or ordering a stream behind it, blocks the host until all members have called
  // it.
  absl::Status barrier(absl::Time deadline) override { return barrier_on({}, deadline); }
  absl::Status barrier_on(const std::vector<int>& device_ids, absl::Time deadline) override;
  absl::Status all_gather_into_tensor(at::Tensor output, at::Tensor input, int size,
                                      absl::Time deadline) override {
    return collectives_.gather_parts("all_gather_into_tensor", {{output}}, {input}, deadline);
  }
  absl::Status reduce_scatter_tensor(at::Tensor output, at::Tensor input, const Reduction& op, int size,
                                     absl::Time deadline) override {
    return collectives_.reduce_parts("reduce_scatter_tensor", output, {input}, op, deadline);
  }

  absl::Status together(c10::Device, const std::vector<std::function<absl::Status()>>& calls) override {
    return collectives_.together(calls);
  }

  absl::Status check_peer(c10::Device, int peer) const override {
    return nccl::check_peer(peer, context_.rank);
  }
  // The future is done when the transfer is enqueued in a stream; the first message of a channel also waits
  // for the other side's call. NCCL has no tags and cannot receive from any source. So each peer, direction
  // and tag has its own channel with a communicator, in which messages keep their order. Errors:
  // ResourceExhausted for more than 64 channels on a rank; InvalidArgument for any source, and for messages
  // to this rank itself. NCCL does not compare the sizes of the two sides.
  Future<void> send(at::Tensor tensor, int dst, int tag, absl::Time deadline) override {
    return messages_.send(std::move(tensor), dst, tag, deadline);
  }
  Future<int> receive(at::Tensor tensor, int src, int tag, absl::Time deadline) override {
    return messages_.receive(std::move(tensor), src, tag, deadline);
  }

  void abort(const absl::Status& reason) override { watch_->fail(reason); }
  std::unique_ptr<Enqueued> take_enqueued() override;
  MultiDevice* multi_device() override { return &collectives_; }
  std::shared_ptr<void> world_state() override { return watchdog_; }

 private:
  std::vector<std::shared_ptr<NcclComms>> all_comms() const;

  const BackendContext context_;
  const std::shared_ptr<Watchdog> watchdog_;
  const std::shared_ptr<GroupWatch> watch_;
  NcclCollectives collectives_;
  NcclMessages messages_;
};

}  // namespace gradwire::collectives::nccl
