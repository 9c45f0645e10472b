#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/proto/value.pb.h"

namespace gradwire::rpc {

class IpcShipment;

// Writes the tensors of one message that stay in the memory of their devices, from which another process
// copies them. It exists while the message is encoded. Not thread-safe. Exceptions of libtorch propagate.
class IpcWriter {
 public:
  explicit IpcWriter(const DeviceRoute* route);
  ~IpcWriter();

  // Writes a tensor on a device, which goes to a device. A copy is made on its device unless the message
  // alone has its memory. Returns false, and leaves `out` as it is, if the tensor must take another way.
  bool write(const at::Tensor& tensor, proto::Tensor& out);

  // Call when all tensors have been written. Errors: those of the driver, and of DeviceTransfers::start().
  absl::Status finish(proto::Payload& payload, EncodedTensors& out);

 private:
  // As write(), with the driver's reason why the tensor cannot be shared.
  absl::Status describe(const at::Tensor& tensor, proto::Tensor& out);

  const DeviceRoute* const route_;
  std::unique_ptr<IpcShipment> shipment_;
};

}  // namespace gradwire::rpc
