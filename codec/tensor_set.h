#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/proto/value.pb.h"

namespace gradwire::transport {
class Buffer;
}

namespace gradwire::rpc {

// The tensors of one message, in the order of Payload.tensors. Only the tensor codec, and the layers that
// link it, know the tensor type: the agent works without libtorch.
class TensorSet {
 public:
  virtual ~TensorSet() = default;
  virtual std::size_t size() const = 0;
};

enum class TensorSharing {
  // The tensors may be modified as soon as they are encoded, so their bytes are copied, unless they were
  // moved in.
  kCapture,
  // The tensors must not be modified until the message has been sent, or captured by its connection.
  kBorrow,
};

// Converts tensors to bytes and back. //codec/torch:tensor_backend installs it once per process. Thread-safe.
class TensorBackend {
 public:
  virtual ~TensorBackend() = default;

  // Appends a description of each tensor to payload.tensors and the bytes of the large ones to `buffers`.
  // InvalidArgument, with the reason, for a tensor that cannot be sent.
  virtual absl::Status encode(const TensorSet& tensors, TensorSharing sharing, proto::Payload& payload,
                              std::vector<transport::Buffer>& buffers) = 0;

  // Returns the tensors of a payload. Their memory is that of `buffers`, or newly allocated. The content of
  // `payload` is untrusted. InvalidArgument names the index of the tensor and the reason.
  virtual absl::StatusOr<std::unique_ptr<TensorSet>> decode(const proto::Payload& payload,
                                                            std::vector<transport::Buffer> buffers) = 0;
};

// Must be called during static initialisation.
void install_tensor_backend(TensorBackend* backend);
// Returns nullptr if the program was linked without libtorch.
TensorBackend* tensor_backend();

}  // namespace gradwire::rpc
