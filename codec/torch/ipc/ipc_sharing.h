#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/device_transfers.h"
#include "gradwire/codec/torch/ipc/ipc_events.h"
#include "gradwire/codec/torch/ipc/ipc_memory.h"

namespace gradwire::rpc {

// The devices of one agent, whose memory other processes read and that read memory of other processes.
// Thread-safe.
class IpcSharing : public DeviceSharing {
 public:
  explicit IpcSharing(std::vector<Device> devices) : devices_(std::move(devices)) {}

  absl::StatusOr<std::string> identity(const Device& device) override;
  void forget(uint64_t worker) override;
  void close() override;
  bool sweep() override { return memories_.sweep() == 0; }

  // This agent's device that is the physical device with this identity. InvalidArgument if it has none.
  absl::StatusOr<c10::Device> find(const std::string& identity);
  // The stream that waits for the end of reads of memory on `device`.
  c10::Stream release_stream(c10::Device device);

  const std::shared_ptr<MadeEvents>& made_events() { return made_events_; }
  OpenedEvents& opened_events() { return opened_events_; }
  OpenedMemories& memories() { return memories_; }

 private:
  const std::vector<Device> devices_;
  // Shared with shipments, which may end later.
  const std::shared_ptr<MadeEvents> made_events_ = std::make_shared<MadeEvents>();
  OpenedEvents opened_events_;
  OpenedMemories memories_;

  Mutex mutex_;
  absl::flat_hash_map<std::string, c10::Device> by_identity_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<c10::DeviceIndex, c10::Stream> release_streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
