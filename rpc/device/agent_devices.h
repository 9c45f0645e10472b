#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/codec/device.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/core/options.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/device/ipc_channel.h"

namespace gradwire::rpc {

// The devices of one agent and of the other members of its group, and the maps between them. Thread-safe
// after start().
class AgentDevices {
 public:
  // Checks the options against the accelerator of this process. InvalidArgument names the device or the map.
  absl::Status start(const RpcBackendOptions& options, const Worker& self);

  // The devices on which this worker accepts tensors (without the CPU).
  const std::vector<Device>& devices() const { return devices_; }
  // Whether tensors in the memory of a device can be sent or received here.
  bool any() const { return !devices_.empty(); }

  // Begins to use the channel "ipc", if the options allow it and a kind of device can do it: for an agent
  // with these interfaces. Returns the part of the agent to be added; nullptr if the channel is not used.
  // Call once, after start() and before the agent joins.
  std::unique_ptr<AgentExtension> open_ipc(ReferenceHost& host, ArrivalOrder& arrival_order);
  // nullptr if the channel is not used.
  IpcChannel* ipc() const { return ipc_.get(); }

  // Adds this worker's devices to its record, with which it joins the group.
  void announce(proto::WorkerRecord& record) const;
  // Call when a worker joins, before messages to it are sent, and when it has left or died. joined() returns
  // InvalidArgument if the map for the worker leads to a device that it does not have.
  absl::Status joined(const Worker& worker, const proto::WorkerRecord& record);
  void left(uint64_t incarnation);

  // The map for tensors to `worker`; nullptr if devices mean those of the same name. `of_call`: the map of
  // the call, which wins, or nullptr.
  const DeviceMap* map_for(const Worker& worker, const DeviceMap* of_call) const;
  // The route of a message to `worker` with `map` (may be nullptr). Both must outlive it.
  DeviceRoute route_to(const Worker& worker, const DeviceMap* map) const;
  // For a message from `from`.
  DeviceArrival arrival(const Worker& from) const { return {&devices_, from.incarnation, self_, ipc_.get()}; }

  // The tensors of a received payload.
  struct Arrived {
    // While it exists, streams of the pool are current on this thread: those on which tensors on devices were
    // made. nullptr if all tensors are on the CPU.
    std::unique_ptr<StreamScope> streams;
    std::unique_ptr<TensorSet> tensors;
    // After it the tensors may be used; nullptr if all are on the CPU.
    StreamFencePtr fence;
  };
  // Decodes the tensors of a payload from this worker into `arrived`, which must be empty. Errors: those of
  // TensorBackend::decode(). REQUIRES: the program was linked with libtorch.
  absl::Status decode(const Worker& from, const proto::Payload& payload,
                      std::vector<transport::Buffer> buffers, Arrived& arrived) const;

 private:
  std::vector<Device> devices_;
  // The devices of the channel "ipc".
  std::vector<Device> shared_;
  std::map<std::string, DeviceMap> maps_;
  uint64_t self_ = 0;
  // Whether the channel "local" may be used.
  bool local_ = true;
  // Whether the channel "ipc" may be used, and whether the options name it.
  bool use_ipc_ = true;
  bool ipc_chosen_ = false;
  // Set before the agent joins.
  std::shared_ptr<IpcChannel> ipc_;
  // Makes this agent known to the others of its process.
  std::shared_ptr<void> registered_;

  mutable Mutex mutex_;
  // The devices of the members, by incarnation.
  HashMap<uint64_t, std::shared_ptr<const std::vector<Device>>> theirs_ ABSL_GUARDED_BY(mutex_);
};

// Writes a map into a request, and reads it. InvalidArgument if it is not a one-to-one map of devices.
void to_proto(const DeviceMap& map, proto::Request& request);
absl::StatusOr<DeviceMap> device_map_of(const proto::Request& request);

}  // namespace gradwire::rpc
