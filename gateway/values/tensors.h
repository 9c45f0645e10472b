#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/proto/gateway.pb.h"
#include "gradwire/transport/message.h"

namespace gradwire::gateway {

// A tensor as its bytes: row-major, as in proto/gateway.proto. The buffer keeps the memory alive.
struct TensorBytes {
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  std::vector<int64_t> shape;
  transport::Buffer bytes;
};

// Makes libtorch's tensors of bytes and back. //gateway/torch installs it, so that the gateway itself, and
// its tests under sanitizers, need no libtorch. Thread-safe.
class TensorBridge {
 public:
  virtual ~TensorBridge() = default;
  // Allocates memory for a tensor. ResourceExhausted if no memory is left.
  virtual absl::StatusOr<transport::Buffer> allocate(std::size_t size) = 0;
  // Adds a tensor over the bytes to a message, without a copy. Returns its index. REQUIRES: checked_bytes()
  // accepts the tensor, and the buffer comes from allocate().
  virtual uint32_t add(TensorBytes tensor, rpc::Encoder& encoder) = 0;
  // Returns the tensor at `index` of a received message; the bytes are copied only if they are not row-major.
  // InvalidArgument for a tensor that clients cannot receive.
  virtual absl::StatusOr<TensorBytes> read(rpc::TensorSet& tensors, uint32_t index) = 0;
};

// Called during static initialisation.
void install_tensor_bridge(TensorBridge* bridge);
// nullptr in a program without //gateway/torch.
TensorBridge* tensor_bridge();

// Returns the number of bytes that a tensor of a client has. InvalidArgument for an unknown dtype, for a
// shape whose size does not fit into 63 bits, and if `data` has another length. The data of a chunked tensor
// is not there yet.
absl::StatusOr<uint64_t> checked_bytes(const v1::Tensor& tensor);

}  // namespace gradwire::gateway
