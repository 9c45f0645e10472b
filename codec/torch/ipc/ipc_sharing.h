#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/device_transfers.h"
#include "gradwire/codec/torch/ipc/ipc_memory.h"
#include "gradwire/device/device_transfer.h"

namespace gradwire::rpc {

// The two events of one device in one transfer (proto/rpc.proto, "Transfers").
struct EventPair {
  std::unique_ptr<device::SharedEvent> ready;
  std::unique_ptr<device::SharedEvent> consumed;
};

// The events that this process has made. An event is used for transfers to one worker only: another worker
// that knows its handle could record it at the wrong time. Thread-safe.
class MadeEvents {
 public:
  // Number of unused pairs that are kept for each worker and device.
  static constexpr std::size_t kMaxFree = 64;

  // Errors: those of the driver.
  absl::StatusOr<EventPair> take(uint64_t worker, c10::Device device);
  void give(uint64_t worker, c10::Device device, EventPair events);
  // The worker is lost. Its events are destroyed, also those that are given back later.
  void forget(uint64_t worker);
  // As forget() for all workers.
  void close();

 private:
  Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  HashSet<uint64_t> forgotten_ ABSL_GUARDED_BY(mutex_);
  HashMap<std::pair<uint64_t, c10::DeviceIndex>, std::vector<EventPair>> free_ ABSL_GUARDED_BY(mutex_);
};

// The events of other processes that were opened here. Thread-safe.
class OpenedEvents {
 public:
  // Number of unused events that are kept for each worker.
  static constexpr std::size_t kMaxKept = 256;

  // Opens the event, or returns one that was given back. Until then it is used by this caller alone. Errors:
  // those of the driver.
  absl::StatusOr<std::unique_ptr<device::SharedEvent>> take(uint64_t worker, c10::Device device,
                                                            const std::string& handle);
  void give(uint64_t worker, c10::Device device, const std::string& handle,
            std::unique_ptr<device::SharedEvent> event);
  void forget(uint64_t worker);
  void close();

 private:
  using Key = std::pair<c10::DeviceIndex, std::string>;

  Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  HashSet<uint64_t> forgotten_ ABSL_GUARDED_BY(mutex_);
  HashMap<uint64_t, HashMap<Key, std::unique_ptr<device::SharedEvent>>> kept_ ABSL_GUARDED_BY(mutex_);
};

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
  HashMap<std::string, c10::Device> by_identity_ ABSL_GUARDED_BY(mutex_);
  HashMap<c10::DeviceIndex, c10::Stream> release_streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
