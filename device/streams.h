#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <vector>

namespace gradwire::device {

// Functions for tensors on accelerators, whose work runs on streams: a call of an operator only appends the
// work to the current stream of the calling thread. None of the functions waits on the host for a device.
// They use libtorch's interface for every kind of device, and throw what the device throws.
//
// A tensor is "ready on a stream" if work that is appended to the stream from now on may use the tensor.

// Whether the tensor is defined and work on it runs on streams. Calls no code of a device for a tensor on
// the CPU.
bool has_streams(const at::Tensor& tensor);

// Returns the current stream of the calling thread on the device.
c10::Stream current_stream(c10::Device device);

// Makes work that is appended to `later` from now on wait for the work that has been appended to `earlier`.
void order(const c10::Stream& earlier, const c10::Stream& later);

// Calls `visit` with the tensors whose storages are the memory of a tensor that has streams: with itself, or,
// if it is sparse, with its parts.
void for_each_part(const at::Tensor& tensor, const std::function<void(const at::Tensor&)>& visit);

// Records that `stream` uses the memory of the tensor: when the memory is freed, the allocator does not reuse
// it before the work that is then on the stream. Does nothing if the stream is on another device.
void record_use(const at::Tensor& tensor, const c10::Stream& stream);

// Makes a tensor that is ready on `stream` ready on the current stream of its own device too, and records
// that use. Does nothing for a tensor that has no streams.
void ready_on_current_stream(const at::Tensor& tensor, const c10::Stream& stream);

// A set of streams. Not thread-safe.
class StreamSet {
 public:
  void add(const c10::Stream& stream);
  bool empty() const { return streams_.empty(); }
  // Makes the current streams of the calling thread, on the devices of the set, wait for the work that has
  // been appended to the streams of the set. If a device is lost, throws after it has ordered the others.
  void order_before_current_streams() const;

 private:
  std::vector<c10::Stream> streams_;
};

}  // namespace gradwire::device
