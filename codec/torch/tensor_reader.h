#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/proto/value.pb.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

// Makes tensors out of the descriptions and buffers of one message, all of them hostile. Lives for one
// message; not thread-safe. Exceptions of libtorch pass through.
class TensorReader {
 public:
  explicit TensorReader(std::vector<transport::Buffer> buffers) : buffers_(std::move(buffers)) {}

  // InvalidArgument says what is wrong with the description.
  absl::StatusOr<at::Tensor> read(const proto::Tensor& in);

 private:
  // The plain tensor of `dtype` that a description's sizes, strides and data make.
  absl::StatusOr<at::Tensor> read_strided(const proto::Tensor& in, at::ScalarType dtype, bool checked);
  absl::StatusOr<at::Tensor> read_inline(const proto::Tensor& in, at::ScalarType dtype, std::size_t size);
  absl::StatusOr<at::Tensor> read_sparse_coo(const proto::Tensor& in, at::ScalarType dtype);
  absl::StatusOr<at::Tensor> read_sparse_csr(const proto::Tensor& in, at::ScalarType dtype);
  absl::StatusOr<at::Tensor> read_quantized(const proto::Tensor& in, at::ScalarType dtype);
  // A component: row-major and of a plain dtype.
  absl::StatusOr<at::Tensor> read_part(const proto::Tensor& in);

  // The memory that holds the `size` bytes of a tensor, not 0. Each buffer is taken at most once.
  // `checked`: what it holds is about to be checked, so that nobody else may be able to write to it.
  absl::StatusOr<transport::Buffer> take_bytes(const proto::Tensor& in, std::size_t size, bool checked);

  std::vector<transport::Buffer> buffers_;
};

}  // namespace gradwire::rpc
