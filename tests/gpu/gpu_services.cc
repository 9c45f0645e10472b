#include "gradwire/tests/gpu/gpu_services.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <stdexcept>

#include "gradwire/base/error.h"
#include "gradwire/device/device_transfer.h"
#include "gradwire/tests/device_calls/device_kind.h"

namespace gradwire::gpu_tests {
namespace {

using device_kind::delay;

const c10::Device kDevice(c10::kCUDA, 0);

device::DeviceTransfer& transfer() { return *device::device_transfer(c10::kCUDA); }

}  // namespace

at::Tensor triple(const at::Tensor& x) {
  delay(x.device());
  const at::Tensor y = x * 3;
  delay(x.device());
  return y;
}

at::Tensor echo(const at::Tensor& x) { return x; }
std::string device_of(const at::Tensor& x) { return x.device().str(); }
int64_t count(const at::Tensor& x) { return x.numel(); }
at::Tensor fetch(const rpc::RRef<at::Tensor>& value) { return value.to_here(); }

at::Tensor fail_late(const at::Tensor& x) {
  delay(x.device());
  const at::Tensor y = x * 3;
  throw std::runtime_error("failed on purpose");
}

at::Tensor take_too_much(const at::Tensor& x) { return at::empty({int64_t{1} << 48}, x.options()); }

void limit_memory(int64_t bytes) {
  using namespace c10::cuda::CUDACachingAllocator;  // NOLINT
  emptyCache();
  std::size_t free = 0;
  std::size_t total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) throw std::runtime_error("cudaMemGetInfo failed");
  const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const int64_t now = getDeviceStats(0).reserved_bytes[all].current;
  setMemoryFraction(bytes < 0 ? 1.0 : static_cast<double>(now + bytes) / static_cast<double>(total), 0);
}

void lose_device() {
  const at::Tensor x = at::zeros({4}, at::TensorOptions().device(kDevice));
  const at::Tensor wrong = at::full({1}, 1000, at::TensorOptions().device(kDevice).dtype(at::kLong));
  (void)x.index_select(0, wrong);
  // The error comes now or at the next call.
  (void)cudaDeviceSynchronize();
}

Sums::Sums(int64_t n) : sum_(at::zeros({n}, at::TensorOptions().device(kDevice))) {}

void Sums::add(const at::Tensor& x) {
  delay(kDevice);
  sum_ += x;
}

at::Tensor read_shared(const std::string& handle, int64_t size, int64_t offset, int64_t count,
                       const std::string& ready, const std::string& consumed) {
  const c10::Stream stream = c10::cuda::getCurrentCUDAStream(kDevice.index()).unwrap();
  const auto memory = value_or_throw(transfer().open(kDevice, handle, static_cast<uint64_t>(size)));
  const auto ready_event = value_or_throw(transfer().open_event(kDevice, ready));
  const auto consumed_event = value_or_throw(transfer().open_event(kDevice, consumed));
  throw_if_error(ready_event->block(stream));
  const at::Tensor copy = at::empty({count}, at::TensorOptions().device(kDevice));
  throw_if_error(transfer().copy(copy.mutable_data_ptr(), static_cast<char*>(memory->data()) + offset,
                                 copy.nbytes(), stream));
  delay(kDevice);
  throw_if_error(consumed_event->record(stream));
  // Waits for the stream, so nothing uses the memory when it is closed.
  return copy.cpu();
}

std::string try_open(const std::string& handle, int64_t size) {
  return std::string(transfer().open(kDevice, handle, static_cast<uint64_t>(size)).status().message());
}

std::string identity() { return value_or_throw(transfer().identity(kDevice)); }

GRADWIRE_RPC(triple)
GRADWIRE_RPC(echo)
GRADWIRE_RPC(device_of)
GRADWIRE_RPC(count)
GRADWIRE_RPC(fetch)
GRADWIRE_RPC(fail_late)
GRADWIRE_RPC(take_too_much)
GRADWIRE_RPC(limit_memory)
GRADWIRE_RPC(lose_device)
GRADWIRE_RPC(read_shared)
GRADWIRE_RPC(try_open)
GRADWIRE_RPC(identity)
GRADWIRE_RPC_SERIAL_CLASS(Sums, int64_t)
GRADWIRE_RPC_METHOD(Sums, add)
GRADWIRE_RPC_METHOD(Sums, get)

}  // namespace gradwire::gpu_tests
