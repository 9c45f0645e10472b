#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/proto/value.pb.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

// Returns the dtype with this number. InvalidArgument if the number is unknown.
absl::StatusOr<at::ScalarType> checked_dtype(uint32_t number);

// The checked description of a tensor, and its data, which was received in several buffers of whole elements.
struct TensorPieces {
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  // Empty: row-major.
  std::vector<int64_t> strides;
  // Together they have exactly the bytes of the tensor. The sender may still change them.
  std::vector<transport::Buffer> buffers;
};

// Creates tensors from the descriptions and buffers of one message, all of which may be hostile. It exists
// while one message is decoded. Not thread-safe. Exceptions of libtorch propagate.
class TensorReader {
 public:
  explicit TensorReader(std::vector<transport::Buffer> buffers) : buffers_(std::move(buffers)) {}

  // InvalidArgument gives the reason why the description is invalid.
  absl::StatusOr<at::Tensor> read(const proto::Tensor& in);

  // Whether the data of a description is in several buffers and may be used without read(): the elements may
  // have any bytes.
  static bool has_pieces(const proto::Tensor& in);
  // As read(), without making one memory of the pieces. REQUIRES: has_pieces(in).
  absl::StatusOr<TensorPieces> read_pieces(const proto::Tensor& in);

 private:
  // Creates a plain tensor of `dtype` from a description's sizes, strides and data. `checked`: see
  // take_bytes().
  absl::StatusOr<at::Tensor> read_strided(const proto::Tensor& in, at::ScalarType dtype, bool checked);
  absl::StatusOr<at::Tensor> read_inline(const proto::Tensor& in, at::ScalarType dtype, std::size_t size);
  absl::StatusOr<at::Tensor> read_sparse_coo(const proto::Tensor& in, at::ScalarType dtype);
  absl::StatusOr<at::Tensor> read_sparse_csr(const proto::Tensor& in, at::ScalarType dtype);
  absl::StatusOr<at::Tensor> read_quantized(const proto::Tensor& in, at::ScalarType dtype);
  // Reads a component of a sparse or quantized tensor: row-major and of a plain dtype.
  absl::StatusOr<at::Tensor> read_part(const proto::Tensor& in);

  // Returns the memory with the `size` > 0 bytes of a tensor. Each buffer is taken at most once. `checked`:
  // the caller is about to check the content, so the memory must not be writable by the peer.
  absl::StatusOr<transport::Buffer> take_bytes(const proto::Tensor& in, std::size_t size, bool checked);
  // Returns the buffers with the `size` > 0 bytes of a tensor, of elements of `element` bytes.
  absl::StatusOr<std::vector<transport::Buffer>> take_buffers(const proto::Tensor& in, std::size_t size,
                                                              std::size_t element);

  std::vector<transport::Buffer> buffers_;
};

}  // namespace gradwire::rpc
