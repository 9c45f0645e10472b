#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "gradwire/base/error.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/device/device_transfer.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tests/device_calls/device_kind.h"
#include "gradwire/tests/gpu/gpu_services.h"
#include "gradwire/tests/gpu/two_processes.h"

// Memory and events of a GPU that two processes share, through DeviceTransfer alone. The handles travel in
// ordinary calls.
namespace gradwire::gpu_tests {
namespace {

using device_kind::delay;
using ::testing::HasSubstr;

const c10::Device kDevice(c10::kCUDA, 0);

device::DeviceTransfer& transfer() { return *device::device_transfer(c10::kCUDA); }

c10::Stream current() { return c10::cuda::getCurrentCUDAStream(kDevice.index()).unwrap(); }

class SharedMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    GRADWIRE_NEEDS("cuda_ipc", transfer().can_share(kDevice));
    device_kind::begin(3);
  }
};

TEST_F(SharedMemoryTest, TheOtherProcessReadsWhatWasComputedBeforeTheEvent) {
  const TwoProcesses processes("host");
  const rpc::AgentGuard guard(processes.agent());
  EXPECT_EQ(rpc::rpc_sync<&identity>("worker1"), value_or_throw(transfer().identity(kDevice)));
  const auto ready = value_or_throw(transfer().make_event(kDevice));
  const auto consumed = value_or_throw(transfer().make_event(kDevice));
  for (int i = 0; i < 50; ++i) {
    const at::Tensor x = at::randn({1000 + 777 * i});
    at::Tensor there = x.to(kDevice);
    delay(kDevice);
    there = there * 2;
    throw_if_error(ready->record(current()));
    // A part of the tensor, at an offset of its own.
    const at::Tensor part = there.slice(0, 3);
    const device::SharedMemory memory = value_or_throw(transfer().share(kDevice, part.const_data_ptr()));
    EXPECT_LE(memory.offset + part.nbytes(), memory.size);
    const Future<at::Tensor> got = rpc::rpc_async<&read_shared>(
        "worker1", memory.handle, static_cast<int64_t>(memory.size), static_cast<int64_t>(memory.offset),
        part.numel(), ready->handle(), consumed->handle());
    EXPECT_TRUE(at::equal(got.wait(), (x * 2).slice(0, 3)));
    // After `consumed` the memory may change.
    throw_if_error(consumed->block(current()));
    there.fill_(-1);
  }
}

TEST_F(SharedMemoryTest, TheSameAllocationHasTheSameHandle) {
  const at::Tensor x = at::zeros({1000}, at::TensorOptions().device(kDevice));
  const device::SharedMemory whole = value_or_throw(transfer().share(kDevice, x.const_data_ptr()));
  const device::SharedMemory part =
      value_or_throw(transfer().share(kDevice, x.slice(0, 10).const_data_ptr()));
  EXPECT_EQ(whole.handle, part.handle);
  EXPECT_EQ(whole.size, part.size);
  EXPECT_EQ(whole.offset + 40, part.offset);
}

TEST_F(SharedMemoryTest, WrongSizesAndHandlesAreRefused) {
  const TwoProcesses processes("host");
  const rpc::AgentGuard guard(processes.agent());
  const at::Tensor x = at::zeros({1000}, at::TensorOptions().device(kDevice));
  const device::SharedMemory memory = value_or_throw(transfer().share(kDevice, x.const_data_ptr()));
  const auto size = static_cast<int64_t>(memory.size);
  EXPECT_EQ(rpc::rpc_sync<&try_open>("worker1", memory.handle, size), "");
  EXPECT_THAT(rpc::rpc_sync<&try_open>("worker1", memory.handle, int64_t{1} << 60), HasSubstr("wrong size"));
  EXPECT_THAT(rpc::rpc_sync<&try_open>("worker1", std::string(64, 'x'), size),
              HasSubstr("cudaIpcOpenMemHandle"));
  // A handle of the process itself.
  EXPECT_FALSE(transfer().open(kDevice, memory.handle, memory.size).ok());
  // No error is left behind for libtorch's next check of a kernel launch.
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(rpc::rpc_sync<&try_open>("worker1", memory.handle, size), "");
}

TEST_F(SharedMemoryTest, MemoryThatCudaMallocHasNotAllocatedIsRefused) {
  const at::Tensor x = at::zeros({10});
  EXPECT_EQ(transfer().share(kDevice, x.const_data_ptr()).status().code(), absl::StatusCode::kUnavailable);
  void* pooled = nullptr;
  ASSERT_EQ(cudaMallocAsync(&pooled, 1000, nullptr), cudaSuccess);
  const absl::Status status = transfer().share(kDevice, pooled).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("cudaMalloc has not allocated it"));
  EXPECT_EQ(cudaFree(pooled), cudaSuccess);
}

}  // namespace
}  // namespace gradwire::gpu_tests
