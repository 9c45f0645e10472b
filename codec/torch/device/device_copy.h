#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/codec/torch/tensors/tensor_reader.h"

namespace gradwire::rpc {

// Tensors between a device and the host, by copies that are enqueued on the current streams of the calling
// thread. The thread waits for no stream. Errors of libtorch are thrown.

// Returns a tensor on the CPU that gets the content of `tensor`, which is on a device. It may be read when a
// fence that is recorded now has been reached.
at::Tensor to_host(const at::Tensor& tensor);

// A size for pieces of tensors, which are copied one after the other: so large that the cost of a copy does
// not matter, so small that the first piece is on its way early. It is a multiple of all sizes of elements.
inline constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

// Whether to_host_in_pieces() is worth it: a strided tensor of more than one piece.
bool has_pieces(const at::Tensor& tensor);
// As to_host(), in pieces. The tensor is dense.
struct PiecesOnHost {
  at::Tensor tensor;
  // For each piece of kPieceBytes, in the order of the memory, the point at which it may be read.
  std::vector<StreamFencePtr> copied;
};
// REQUIRES: has_pieces(tensor).
PiecesOnHost to_host_in_pieces(const at::Tensor& tensor);
// Returns a tensor on `device` with the content of `tensor`, which is on the CPU. `tensor` may be destroyed
// and modified at once.
at::Tensor to_device(const at::Tensor& tensor, c10::Device device);
// As above, from the received pieces of a tensor.
at::Tensor to_device(const TensorPieces& pieces, c10::Device device);
// Returns the tensor that a receiver gets, who may change it: `tensor` itself, if this is its only handle and
// its memory is that of an allocator and has its elements and nothing else; else a snapshot.
at::Tensor to_pass_on(const at::Tensor& tensor);
// Returns a copy of `tensor` on its device, with the same strides if they have no gaps.
at::Tensor snapshot(const at::Tensor& tensor);

}  // namespace gradwire::rpc
