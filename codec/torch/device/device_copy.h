#pragma once

#include <ATen/core/Tensor.h>

namespace gradwire::rpc {

// Tensors between a device and the host, by copies that are enqueued on the current streams of the calling
// thread. The thread waits for no stream. Errors of libtorch are thrown.

// Returns a tensor on the CPU that gets the content of `tensor`, which is on a device. It may be read when a
// fence that is recorded now has been reached.
at::Tensor to_host(const at::Tensor& tensor);
// Returns a tensor on `device` with the content of `tensor`, which is on the CPU. `tensor` may be destroyed
// and modified at once.
at::Tensor to_device(const at::Tensor& tensor, c10::Device device);
// Returns the tensor that a receiver gets, who may change it: `tensor` itself, if this is its only handle and
// its memory is that of an allocator and has its elements and nothing else; else a snapshot.
at::Tensor to_pass_on(const at::Tensor& tensor);
// Returns a copy of `tensor` on its device, with the same strides if they have no gaps.
at::Tensor snapshot(const at::Tensor& tensor);

}  // namespace gradwire::rpc
