#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/codec/device_transfers.h"
#include "gradwire/rpc/agent/extension.h"
#include "gradwire/rpc/rref/reference_host.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

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
