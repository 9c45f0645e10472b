#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/nccl/group_watch.h"
#include "gradwire/collectives/nccl/nccl_channel.h"
#include "gradwire/collectives/registry/backend_registry.h"

namespace gradwire::collectives::nccl {

// The point-to-point messages of one member. NCCL has no tags and cannot receive from any source. So each
// peer, direction and tag has its own channel, which the first message makes. Thread-safe.
class NcclMessages {
 public:
  NcclMessages(const BackendContext& context, std::shared_ptr<GroupWatch> watch)
      : context_(context), watch_(std::move(watch)) {}

  // As GroupBackend's methods; see NcclGroup for the limits.
  Future<void> send(at::Tensor tensor, int dst, int tag, absl::Time deadline);
  Future<int> receive(at::Tensor tensor, int src, int tag, absl::Time deadline);

  // Stops all channels. Messages that are not in a stream yet fail.
  void stop();
  // The communicators that have been made.
  std::vector<std::shared_ptr<NcclComms>> comms() const;

 private:
  using Channel = std::shared_ptr<NcclChannel>;

  absl::StatusOr<Channel> channel(int peer, bool sends, int tag, c10::Device device);
  absl::Status transfer(at::Tensor tensor, int peer, bool sends, int tag, absl::Time deadline,
                        const Promise<void>& ended);
  std::vector<Channel> channels() const;

  const BackendContext context_;
  const std::shared_ptr<GroupWatch> watch_;

  mutable Mutex mutex_;
  // The channels by peer, whether this rank sends, and tag.
  std::map<std::tuple<int, bool, int>, Channel> channels_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::collectives::nccl
