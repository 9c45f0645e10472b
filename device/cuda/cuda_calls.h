#pragma once

#include <c10/core/Device.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <exception>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire::device::cuda {

// OK, or Unavailable with `what`, the device, and the error's name and text. `result` is what the last call
// of CUDA's runtime on this thread returned. CUDA keeps it as the last error of the thread, where the next
// check of a kernel launch would find it. So it is removed there. This hides no error that stays (a kernel
// that has failed, a GPU that is lost): the next call returns it again.
absl::Status cuda_status(cudaError_t result, absl::string_view what, c10::Device device);

// As DeviceTransfer::meaning().
absl::StatusCode error_meaning(cudaError_t error);

// Unavailable with what() of the exception, without libtorch's backtrace.
absl::Status unavailable(const std::exception_ptr& exception, absl::string_view what, c10::Device device);

// InvalidArgument unless `device` is a device of CUDA with an index that this process has; Unavailable if
// CUDA finds no device at all. Makes no context.
absl::Status check_device(c10::Device device);

// Runs `call`, which returns an absl::Status or absl::StatusOr, while `device` is the current device of this
// thread, and its context the current one of the driver. Restores the current device as libtorch does, which
// makes no context on a device that the process does not use.
template <class Call>
auto on_device(c10::Device device, absl::string_view what, Call call) -> decltype(call()) {
  if (absl::Status status = check_device(device); !status.ok()) return status;
  try {
    const c10::cuda::CUDAGuard guard(device);
    // The guard does nothing on a thread whose current device is this one already. Such a thread may have no
    // context yet, which the driver's functions need.
    if (absl::Status status = cuda_status(cudaSetDevice(device.index()), what, device); !status.ok()) {
      return status;
    }
    return call();
  } catch (...) {
    return unavailable(std::current_exception(), what, device);
  }
}

// The driver's functions that the runtime does not offer. The driver is found by the runtime, because a
// program that is linked with it would not start on a machine without it.
struct Driver {
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDeviceGetUuid) device_uuid = nullptr;
  decltype(&cuMemGetAddressRange) address_range = nullptr;
  decltype(&cuPointerGetAttributes) pointer_attributes = nullptr;
  decltype(&cuGetErrorString) error_string = nullptr;
  decltype(&cuGetErrorName) error_name = nullptr;

  // Unavailable if the driver is missing or too old.
  static absl::StatusOr<const Driver*> get();
  // As cuda_status(), for the driver's own errors.
  absl::Status status(CUresult result, absl::string_view what, c10::Device device) const;
};

}  // namespace gradwire::device::cuda
