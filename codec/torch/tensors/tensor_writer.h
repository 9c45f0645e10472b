#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "absl/status/status.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/proto/value.pb.h"

namespace gradwire::rpc {

// Whether the memory of the tensor can be reached only through the `handles` known handles to it.
// `given_away`: see TorchTensors.
bool is_alone(const at::Tensor& tensor, std::size_t handles, bool given_away);
// InvalidArgument if no tensor of this kind can be sent from any device: a wrapper, or a nested tensor.
absl::Status check_sendable(const at::Tensor& tensor);

// Writes tensors into a payload. It exists while one message is encoded. Not thread-safe. Exceptions of
// libtorch propagate.
class TensorWriter {
 public:
  // `in_transit`: the tensors belong to the message, and their memory is still being written by a device. It
  // is not read here.
  TensorWriter(TensorSharing sharing, EncodedTensors& out, bool in_transit = false)
      : sharing_(sharing), in_transit_(in_transit), out_(out) {}

  // Writes `tensor`. The caller must hold exactly one handle to it. `given_away`: see TorchTensors.
  // InvalidArgument, with the reason, if the tensor cannot be sent.
  absl::Status write(const at::Tensor& tensor, bool given_away, proto::Tensor& out);
  // Writes a strided tensor on the CPU with elements, which is dense and belongs to the message, in buffers
  // of `piece` bytes, which are whole elements. Its memory is not read here.
  absl::Status write_in_pieces(const at::Tensor& dense, std::size_t piece, proto::Tensor& out);

 private:
  // Describes the layout of a dense tensor with elements.
  static void write_layout(const at::Tensor& dense, int64_t numel, proto::Tensor& out);
  absl::Status write_strided(const at::Tensor& tensor, bool given_away, proto::Tensor& out);
  absl::Status write_sparse_coo(const at::Tensor& tensor, proto::Tensor& out);
  absl::Status write_sparse_csr(const at::Tensor& tensor, proto::Tensor& out);
  absl::Status write_quantized(const at::Tensor& tensor, bool given_away, proto::Tensor& out);

  // Writes a component of a sparse or quantized tensor, always row-major.
  absl::Status write_part(const at::Tensor& part, proto::Tensor& out);
  // Writes the bytes of `dense`, a dense CPU tensor without pending conjugation or negation. `alone`: no
  // other owner can modify its memory, so it may be read at any later time.
  absl::Status write_bytes(const at::Tensor& dense, bool alone, proto::Tensor& out);
  // Returns an owner of the memory of a tensor for the transport, which drops it on any thread.
  std::shared_ptr<void> share_memory(const at::Tensor& tensor) const;

  const TensorSharing sharing_;
  const bool in_transit_;
  EncodedTensors& out_;
};

}  // namespace gradwire::rpc
