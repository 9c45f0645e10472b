#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstddef>

namespace gradwire::lag {

// Copies `from` to `to`, which have the same shape, as CUDA does:
//   - Between tensors of one device: on the current stream.
//   - Between two devices: on the current stream of the device of `from`, after and before what the current
//     stream of the device of `to` does.
//   - To a device from pinned memory: the device reads the host's memory when the stream gets there.
//   - To a device from other memory of the host: the bytes are taken at the call.
//   - To the host: the host's memory is written when the stream gets there.
//   - Unless `non_blocking` is set, a copy from or to the host waits for the stream, which counts as a host
//     wait.
void copy_tensor(const at::Tensor& from, const at::Tensor& to, bool non_blocking);

// Gives a storage memory of another size. The bytes are copied on the current stream.
void resize_storage(const c10::Storage& storage, size_t bytes);

}  // namespace gradwire::lag
