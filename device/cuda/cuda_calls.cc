#include "gradwire/device/cuda/cuda_calls.h"

#include <atomic>
#include <memory>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::device::cuda {
namespace {

// The version of the driver's interface whose functions are used: the oldest driver that this toolkit's
// runtime accepts has it.
constexpr unsigned int kDriverVersion = 12000;

template <class Function>
absl::Status find(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult query = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t result =
      cudaGetDriverEntryPointByVersion(name, &found, kDriverVersion, cudaEnableDefault, &query);
  if (result != cudaSuccess) {
    return cuda_status(result, absl::StrCat("finding the driver's ", name), c10::Device(c10::kCUDA));
  }
  if (query != cudaDriverEntryPointSuccess || found == nullptr) {
    return absl::UnavailableError(absl::StrCat("the driver of CUDA has no ", name, " of version ",
                                               kDriverVersion, "; update the driver"));
  }
  function = reinterpret_cast<Function>(found);
  return absl::OkStatus();
}

absl::StatusOr<const Driver*> load() {
  auto driver = std::make_unique<Driver>();
  GRADWIRE_RETURN_IF_ERROR(find("cuDeviceGet", driver->device_get));
  GRADWIRE_RETURN_IF_ERROR(find("cuDeviceGetUuid", driver->device_uuid));
  GRADWIRE_RETURN_IF_ERROR(find("cuMemGetAddressRange", driver->address_range));
  GRADWIRE_RETURN_IF_ERROR(find("cuPointerGetAttributes", driver->pointer_attributes));
  GRADWIRE_RETURN_IF_ERROR(find("cuGetErrorString", driver->error_string));
  GRADWIRE_RETURN_IF_ERROR(find("cuGetErrorName", driver->error_name));
  return driver.release();
}

}  // namespace

absl::Status cuda_status(cudaError_t result, absl::string_view what, c10::Device device) {
  if (result == cudaSuccess) return absl::OkStatus();
  if (cudaPeekAtLastError() == result) (void)cudaGetLastError();
  return absl::UnavailableError(absl::StrCat(what, " on ", device.str(),
                                             " failed: ", cudaGetErrorString(result), " (",
                                             cudaGetErrorName(result), ")"));
}

// The errors after which the documentation of the runtime says that the process must end to use CUDA again,
// and those of a GPU that has failed.
absl::StatusCode error_meaning(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorExternalDevice:
      return absl::StatusCode::kInternal;
    default:
      return absl::StatusCode::kUnknown;
  }
}

absl::Status unavailable(const std::exception_ptr& exception, absl::string_view what, c10::Device device) {
  return absl::UnavailableError(
      absl::StrCat(what, " on ", device.str(), " failed: ", status_from_exception(exception).message()));
}

absl::Status check_device(c10::Device device) {
  if (!device.is_cuda() || !device.has_index()) {
    return absl::InvalidArgumentError(
        absl::StrCat("wrong device: got ", device.str(), ", expected one of CUDA, as in cuda:0"));
  }
  // A process keeps the devices that it has found. This is asked for with every event, so it is kept, too.
  static std::atomic<int> found = 0;
  int count = found;
  if (count == 0) {
    GRADWIRE_RETURN_IF_ERROR(cuda_status(cudaGetDeviceCount(&count), "counting the devices of CUDA", device));
    found = count;
  }
  if (device.index() < 0 || device.index() >= count) {
    return absl::InvalidArgumentError(absl::StrCat("wrong device: got ", device.str(),
                                                   ", but this process has ", count, " devices of CUDA"));
  }
  return absl::OkStatus();
}

absl::StatusOr<const Driver*> Driver::get() {
  static const auto& driver = *new absl::StatusOr<const Driver*>(load());
  return driver;
}

absl::Status Driver::status(CUresult result, absl::string_view what, c10::Device device) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* text = nullptr;
  if (error_string(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
  const char* name = nullptr;
  if (error_name(result, &name) != CUDA_SUCCESS || name == nullptr) name = "no name";
  return absl::UnavailableError(absl::StrCat(what, " on ", device.str(), " failed: ", text, " (", name, ")"));
}

}  // namespace gradwire::device::cuda
