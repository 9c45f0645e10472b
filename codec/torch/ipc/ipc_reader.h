#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/codec/torch/ipc/ipc_memory.h"
#include "gradwire/device/device_transfer.h"
#include "gradwire/proto/value.pb.h"

namespace gradwire::rpc {

class IpcSharing;

// Reads the tensors of one message from the memory of another process, on the current streams of the calling
// thread. The descriptions are untrusted: nothing beyond an allocation that the driver has opened is read. It
// exists while the message is decoded. Not thread-safe. Exceptions of libtorch propagate.
class IpcReader {
 public:
  // `arrival` may be nullptr, and must outlive it.
  explicit IpcReader(const DeviceArrival* arrival) : arrival_(arrival) {}
  IpcReader(const IpcReader&) = delete;
  IpcReader& operator=(const IpcReader&) = delete;
  // Records the events that mark the end of the copies, and ends the transfer.
  ~IpcReader();

  // Call first, with the message, which must outlive this object. Unavailable if the memory may not be read.
  absl::Status begin(const proto::Payload& payload);
  // Returns a copy of the tensor on `device`. InvalidArgument gives the reason why the description is
  // invalid; Unavailable is an error of the driver.
  absl::StatusOr<at::Tensor> read(const proto::Tensor& in, c10::Device device);

 private:
  // A physical device with memory of the message. It is opened when the first tensor is read from it.
  struct Source {
    c10::Device device;
    std::unique_ptr<device::SharedEvent> ready;
    std::unique_ptr<device::SharedEvent> consumed;
  };

  absl::StatusOr<Source*> source(uint32_t index);

  const DeviceArrival* const arrival_;
  // nullptr if there is nothing to read.
  const proto::Transfer* transfer_ = nullptr;
  IpcSharing* sharing_ = nullptr;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<std::shared_ptr<OpenedMemories::Allocation>> allocations_;
  std::vector<at::Tensor> copies_;
};

}  // namespace gradwire::rpc
