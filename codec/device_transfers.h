#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/codec/device.h"
#include "gradwire/codec/encoded_tensors.h"

namespace gradwire::rpc {

// Tensors on devices that another process reads from this process's memory (proto/rpc.proto, "Transfers").
// The codec knows tensors and events, the agent knows messages and workers. These are their interfaces to
// each other.

// The part of a transfer that stays at its sender: the tensors, and the events that both processes share. The
// destructor frees them at once. This is right only if the receiver does not read any more, also not by
// copies that it has enqueued.
class Shipment {
 public:
  virtual ~Shipment() = default;
  // The receiver enqueues no more copies. Lets go of the memory in the order of a stream that waits for the
  // end of the copies that it has enqueued, and has the events used again. Blocks nowhere. Destroy the object
  // afterwards.
  virtual void release() = 0;
};

// The devices of one agent as other processes see them: shared events, opened memory. The codec implements
// it. Thread-safe.
class DeviceSharing {
 public:
  virtual ~DeviceSharing() = default;
  // The name of the physical device for all processes of the host. Unavailable, with the driver's reason, if
  // its memory or its events cannot be shared.
  virtual absl::StatusOr<std::string> identity(const Device& device) = 0;
  // The worker is lost: closes what was opened of it when no stream uses it any more, and drops the events
  // shared with it.
  virtual void forget(uint64_t worker) = 0;
  // As forget() for all workers.
  virtual void close() = 0;
  // Closes what has become unused since. Returns whether nothing is left to be closed.
  virtual bool sweep() = 0;
};

// The transfers of one agent. The agent implements it. Thread-safe.
class DeviceTransfers {
 public:
  virtual ~DeviceTransfers() = default;
  virtual DeviceSharing& sharing() = 0;

  // ---- For the sender of a message.

  // Whether tensors on `device` can be sent to this worker in this way now. If that is not known yet, begins
  // to find it out, and returns false.
  virtual bool can_send(uint64_t worker, const Device& device) = 0;
  // A tensor on `device` cannot be sent in this way, in spite of can_send(), for a reason of the driver.
  virtual void refused(uint64_t worker, const Device& device, const absl::Status& reason) = 0;
  struct Started {
    uint64_t number = 0;
    // To be kept while the message is on its way. Its end makes this agent reclaim the transfer.
    std::shared_ptr<HandedOver> kept;
  };
  // Keeps the shipment until the transfer has ended. ResourceExhausted if too many have not ended;
  // Unavailable if the worker is lost, or this agent has stopped.
  virtual absl::StatusOr<Started> start(uint64_t worker, std::unique_ptr<Shipment> shipment) = 0;

  // ---- For the receiver of a message.

  // The message has arrived. When the result is destroyed and the tensors were not read, the sender is
  // notified that they will not be.
  virtual std::shared_ptr<void> arrived(uint64_t worker, uint64_t number) = 0;
  // Unavailable if the sender has reclaimed the memory, or is lost, or this agent has stopped. If it returns
  // OK, the memory may be read until end_read().
  virtual absl::Status begin_read(uint64_t worker, uint64_t number) = 0;
  // All copies are enqueued, and the sender's events are recorded.
  virtual void end_read(uint64_t worker, uint64_t number) = 0;
};

}  // namespace gradwire::rpc
