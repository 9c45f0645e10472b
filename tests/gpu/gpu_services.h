#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/rpc/rpc.h"

// The functions and classes that the tests of two processes call at the other one.
namespace gradwire::gpu_tests {

// Makes the device busy before and after the computation.
at::Tensor triple(const at::Tensor& x);
at::Tensor echo(const at::Tensor& x);
std::string device_of(const at::Tensor& x);
int64_t count(const at::Tensor& x);
at::Tensor fetch(const rpc::RRef<at::Tensor>& value);
// Throws std::runtime_error after it has started work on the device.
at::Tensor fail_late(const at::Tensor& x);
// Takes more memory than any GPU has.
at::Tensor take_too_much(const at::Tensor& x);
// From now on the called process may have this many more bytes on cuda:0 than it has now; negative: no limit.
void limit_memory(int64_t bytes);
// Starts a kernel that fails, after which the called process has lost the GPU.
void lose_device();

// A vector on cuda:0 to which others add.
class Sums {
 public:
  explicit Sums(int64_t n);
  void add(const at::Tensor& x);
  at::Tensor get() const { return sum_; }

 private:
  at::Tensor sum_;
};

// Opens memory and events of the caller through DeviceTransfer, as the channel "ipc" does. After the event
// `ready` it copies `count` floats at `offset` of the allocation, then makes the device busy and records the
// event `consumed`. Returns the copy on the CPU.
at::Tensor read_shared(const std::string& handle, int64_t size, int64_t offset, int64_t count,
                       const std::string& ready, const std::string& consumed);
// The error of opening the allocation with a wrong size or handle; "" if it was opened.
std::string try_open(const std::string& handle, int64_t size);
// The UUID of cuda:0.
std::string identity();

}  // namespace gradwire::gpu_tests
