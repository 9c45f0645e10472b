#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/proto/value.pb.h"

namespace gradwire::transport {
class Buffer;
}

namespace gradwire::rpc {

// The tensors of one message, in the order of Payload.tensors. What they are only the tensor codec knows, and
// the layers that it is linked into: the agent works without libtorch.
class TensorSet {
 public:
  virtual ~TensorSet() = default;
  virtual std::size_t size() const = 0;
};

enum class TensorSharing {
  // Tensors may change as soon as they are encoded: their bytes are copied, unless they were given away.
  kCapture,
  // Nobody changes the tensors before the message has left or been captured by its connection.
  kBorrow,
};

// Turns tensors into bytes and back. Installed once per process by //codec/torch:tensor_backend. Thread-safe.
class TensorBackend {
 public:
  virtual ~TensorBackend() = default;

  // Appends a description of each tensor to payload.tensors and the bytes of the large ones to `buffers`.
  // InvalidArgument for a tensor that cannot travel, naming what it is.
  virtual absl::Status encode(const TensorSet& tensors, TensorSharing sharing, proto::Payload& payload,
                              std::vector<transport::Buffer>& buffers) = 0;

  // The tensors of a payload; their memory is that of `buffers`, or fresh. Everything in `payload` is hostile
  // until checked. InvalidArgument naming the tensor's index and what is wrong.
  virtual absl::StatusOr<std::unique_ptr<TensorSet>> decode(const proto::Payload& payload,
                                                            std::vector<transport::Buffer> buffers) = 0;
};

// Called during static initialisation.
void install_tensor_backend(TensorBackend* backend);
// nullptr when the program was linked without libtorch.
TensorBackend* tensor_backend();

}  // namespace gradwire::rpc
