#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace gradwire::device {

// An event that two processes of one host share. Recorded and waited for as c10::Event; not thread-safe.
class SharedEvent {
 public:
  virtual ~SharedEvent() = default;
  // The handle with which the other process opens it. Only the same kind of device can read it.
  virtual const std::string& handle() const = 0;
  virtual absl::Status record(const c10::Stream& stream) = 0;
  // Makes `stream` wait for the latest record() before this call, of either process.
  virtual absl::Status block(const c10::Stream& stream) = 0;
};

// Where the bytes of a tensor are, for another process of the same host.
struct SharedMemory {
  // Names the allocation that contains them. The same allocation has the same handle until it is freed.
  std::string handle;
  // The size of the allocation, and the position of the bytes in it.
  uint64_t size = 0;
  uint64_t offset = 0;
};

// An allocation of another process that was opened here. The destructor closes it: no stream may use it any
// more.
class OpenedMemory {
 public:
  virtual ~OpenedMemory() = default;
  virtual void* data() const = 0;
};

// The operations of one kind of device that the interface of libtorch does not offer for all accelerators.
// One implementation for each kind, registered during static initialisation. Thread-safe. No method throws;
// errors of the driver become Unavailable, with the driver's text.
class DeviceTransfer {
 public:
  virtual ~DeviceTransfer() = default;

  virtual c10::DeviceType type() const = 0;
  // The meaning of a number of c10::AcceleratorError: Internal if the error stays, so that this process has
  // lost the device; ResourceExhausted if memory was missing; else Unknown.
  virtual absl::StatusCode meaning(int error) const = 0;
  // A name of the physical device that all processes of the host share, for example a GPU's UUID.
  virtual absl::StatusOr<std::string> identity(c10::Device device) = 0;

  // Whether memory and events can be shared between processes at all, as far as this process knows:
  // Unavailable gives the reason, for example a driver without support in this container, or an allocator
  // whose memory cannot be shared. The other process may still fail to open them.
  virtual absl::Status can_share(c10::Device device) = 0;
  // The handle of the memory at `data` on `device`, which must stay allocated while the other process uses
  // it.
  virtual absl::StatusOr<SharedMemory> share(c10::Device device, const void* data) = 0;
  // Opens an allocation of another process, whose memory is on the physical device of `device`. `handle` and
  // `size` come from the other process and are untrusted.
  virtual absl::StatusOr<std::unique_ptr<OpenedMemory>> open(c10::Device device, const std::string& handle,
                                                             uint64_t size) = 0;
  virtual absl::StatusOr<std::unique_ptr<SharedEvent>> make_event(c10::Device device) = 0;
  virtual absl::StatusOr<std::unique_ptr<SharedEvent>> open_event(c10::Device device,
                                                                  const std::string& handle) = 0;

  // Enqueues on `stream`, a stream of `device`, a copy of `size` bytes to `to` on `device`, from `from`,
  // which may be memory of another process that open() returned.
  virtual absl::Status copy(void* to, const void* from, std::size_t size, const c10::Stream& stream) = 0;
};

// Call during static initialisation.
void register_device_transfer(DeviceTransfer* transfer);
// nullptr if this kind of device has none in this program.
DeviceTransfer* device_transfer(c10::DeviceType type);

}  // namespace gradwire::device
