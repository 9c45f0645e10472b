#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/codec/device.h"
#include "gradwire/codec/device_transfers.h"
#include "gradwire/rpc/core/extension.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/rref/reference_host.h"

namespace gradwire::rpc {

// Whether memory of a device of this worker can be read by another worker: a pure state machine. A probe
// finds it out, once for each worker and device, when the first tensor goes from the device to the worker.
//
// States: unknown, then probing, then works or fails, which are final.
// Not thread-safe.
class SharingPairs {
 public:
  // Maximum number of probes that may be interrupted, for example by the end of their connection. One more
  // means that sharing fails.
  static constexpr int kMaxInterrupted = 3;

  enum class Use { kNo, kYes, kProbe };
  // Whether tensors may be shared now. kProbe: not yet; begin a probe and report its end.
  Use ask(uint64_t worker, const Device& device);
  // Sharing was found impossible. Returns whether that is new; then log it.
  bool fail(uint64_t worker, const Device& device);
  void succeed(uint64_t worker, const Device& device);
  // The probe has ended without a result. Returns true as fail().
  bool interrupt(uint64_t worker, const Device& device);
  void forget(uint64_t worker);

 private:
  enum class State { kUnknown, kProbing, kWorks, kFails };
  struct Pair {
    State state = State::kUnknown;
    int interrupted = 0;
  };

  HashMap<std::pair<uint64_t, std::string>, Pair> pairs_;
};

// A probe finds out whether another worker can read the memory of one of this worker's devices
// (proto/rpc.proto, SharingProbe). It takes the way of an ordinary message: a tensor with random content is
// made on the device and is shared. The other worker copies it and sends its content back.
struct SharingProbe {
  Worker to;
  // This worker's devices, the one to be probed, and the same physical device as the other worker names it.
  std::vector<Device> devices;
  Device device;
  Device theirs;
  std::shared_ptr<DeviceTransfers> transfers;

  // Sends the probe. `done` is called once, on any thread: with OK if the content was right; with
  // Unavailable, DeadlineExceeded or Cancelled if the other worker has not answered; with FailedPrecondition
  // and the reason if it cannot read the memory.
  void send(ReferenceHost& host, std::function<void(absl::Status)> done) const;
};

// Answers the probe of another worker. `devices`: those of this worker.
void serve_probe(const ServiceCall& call, uint64_t self, const std::vector<Device>& devices,
                 DeviceTransfers& transfers);

}  // namespace gradwire::rpc
