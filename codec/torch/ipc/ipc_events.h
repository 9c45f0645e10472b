#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "gradwire/base/mutex.h"
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
  absl::flat_hash_set<uint64_t> forgotten_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::pair<uint64_t, c10::DeviceIndex>, std::vector<EventPair>> free_
      ABSL_GUARDED_BY(mutex_);
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
  absl::flat_hash_set<uint64_t> forgotten_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, absl::flat_hash_map<Key, std::unique_ptr<device::SharedEvent>>> kept_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
