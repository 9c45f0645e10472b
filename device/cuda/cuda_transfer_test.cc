#include <c10/core/Stream.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "gradwire/device/device_transfer.h"

// These tests need no GPU: nothing throws, errors say what is wrong, and what another process sends
// is checked.
namespace gradwire::device {
namespace {

using ::testing::HasSubstr;

const c10::Device kDevice(c10::kCUDA, 0);
// A device that no machine has.
const c10::Device kMissing(c10::kCUDA, 100);

bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

DeviceTransfer& transfer() { return *device_transfer(c10::kCUDA); }

TEST(CudaTransfer, IsRegisteredInABuildWithCuda) {
  ASSERT_NE(device_transfer(c10::kCUDA), nullptr);
  EXPECT_EQ(transfer().type(), c10::kCUDA);
}

TEST(CudaTransfer, WithoutAGpuEverythingIsUnavailableWithTheDriversText) {
  if (has_gpu()) GTEST_SKIP() << "this machine has a GPU";
  const c10::Stream stream(c10::Stream::DEFAULT, kDevice);
  for (const absl::Status& status :
       {transfer().identity(kDevice).status(), transfer().can_share(kDevice),
        transfer().share(kDevice, &stream).status(),
        transfer().open(kDevice, std::string(64, 'x'), 1).status(), transfer().make_event(kDevice).status(),
        transfer().open_event(kDevice, std::string(64, 'x')).status(),
        transfer().copy(nullptr, nullptr, 0, stream)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("CUDA")) << status;
  }
}

TEST(CudaTransfer, RefusesDevicesThatThisProcessDoesNotHave) {
  EXPECT_FALSE(transfer().identity(kMissing).ok());
  EXPECT_FALSE(transfer().can_share(kMissing).ok());
  EXPECT_FALSE(transfer().make_event(kMissing).ok());
  EXPECT_EQ(transfer().identity(c10::Device(c10::kCPU)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(transfer().identity(c10::Device(c10::kCUDA)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CudaTransfer, RefusesHandlesOfTheWrongLength) {
  for (const std::string& handle : {std::string(), std::string(63, 'x'), std::string(65, 'x')}) {
    const absl::Status memory = transfer().open(kDevice, handle, 1).status();
    EXPECT_EQ(memory.code(), absl::StatusCode::kInvalidArgument) << memory;
    EXPECT_THAT(std::string(memory.message()), HasSubstr("expected 64"));
    const absl::Status event = transfer().open_event(kDevice, handle).status();
    EXPECT_EQ(event.code(), absl::StatusCode::kInvalidArgument) << event;
    EXPECT_THAT(std::string(event.message()), HasSubstr("expected 64"));
  }
}

}  // namespace
}  // namespace gradwire::device
