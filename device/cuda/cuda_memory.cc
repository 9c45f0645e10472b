#include "gradwire/device/cuda/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/error.h"
#include "gradwire/device/cuda/cuda_calls.h"

namespace gradwire::device::cuda {
namespace {

// The driver's knowledge about an address.
struct Allocation {
  unsigned int memory_type = 0;
  int device = -1;
  // 1 for memory of cudaMalloc, which is the only one that cudaIpcGetMemHandle accepts.
  int can_be_shared = 0;
  unsigned long long number = 0;  // NOLINT: the driver's type
  CUdeviceptr begin = 0;
  std::size_t size = 0;
};

absl::StatusOr<Allocation> allocation_of(const Driver& driver, c10::Device device, const void* data) {
  const auto address = reinterpret_cast<CUdeviceptr>(data);
  Allocation found;
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                  CU_POINTER_ATTRIBUTE_BUFFER_ID};
  void* values[] = {&found.memory_type, &found.device, &found.can_be_shared, &found.number};
  static_assert(std::size(wanted) == std::size(values));
  GRADWIRE_RETURN_IF_ERROR(
      driver.status(driver.pointer_attributes(std::size(wanted), wanted, values, address),
                    "cuPointerGetAttributes", device));
  if (found.memory_type != CU_MEMORYTYPE_DEVICE || found.device != device.index()) {
    return absl::UnavailableError(absl::StrCat(
        "the memory of a tensor on ", device.str(),
        " cannot be shared with another process: it is not memory of this device that CUDA has allocated"));
  }
  if (found.can_be_shared == 0) {
    return absl::UnavailableError(absl::StrCat(
        "the memory of a tensor on ", device.str(),
        " cannot be shared with another process: cudaMalloc has not allocated it. Expandable segments, "
        "cudaMallocAsync and memory pools allocate in other ways; unset them in PYTORCH_CUDA_ALLOC_CONF"));
  }
  GRADWIRE_RETURN_IF_ERROR(driver.status(driver.address_range(&found.begin, &found.size, address),
                                         "cuMemGetAddressRange", device));
  return found;
}

// Whether the device is a slice of a GPU, for the text of an error.
bool is_slice(c10::Device device) {
  cudaDeviceProp properties{};
  return cudaGetDeviceProperties(&properties, device.index()) == cudaSuccess &&
         absl::string_view(properties.name).find(" MIG ") != absl::string_view::npos;
}

class CudaOpenedMemory final : public OpenedMemory {
 public:
  CudaOpenedMemory(c10::Device device, void* data) : device_(device), data_(data) {}
  ~CudaOpenedMemory() override {
    // An error means that the process ends or that the GPU is lost, and the mapping with it.
    (void)on_device(device_, "closing memory of another process", [this] {
      return cuda_status(cudaIpcCloseMemHandle(data_), "cudaIpcCloseMemHandle", device_);
    });
  }
  CudaOpenedMemory(const CudaOpenedMemory&) = delete;
  CudaOpenedMemory& operator=(const CudaOpenedMemory&) = delete;

  void* data() const override { return data_; }

 private:
  const c10::Device device_;
  void* const data_;
};

// The other process says how large its allocation is. A copy that reads beyond the end would end this
// process's use of the GPU, so the driver's own number decides.
absl::Status check_size(const Driver& driver, c10::Device device, const void* data, uint64_t size) {
  const auto address = reinterpret_cast<CUdeviceptr>(data);
  CUdeviceptr begin = 0;
  std::size_t extent = 0;
  GRADWIRE_RETURN_IF_ERROR(
      driver.status(driver.address_range(&begin, &extent, address), "cuMemGetAddressRange", device));
  const uint64_t before = address - begin;
  if (address < begin || before > extent || size > extent - before) {
    return absl::InvalidArgumentError(absl::StrCat("wrong size of an allocation of another process: got ",
                                                   size, " bytes, but it has ", extent, " on ",
                                                   device.str()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SharedMemory> MemoryHandles::share(c10::Device device, const void* data) {
  GRADWIRE_ASSIGN_OR_RETURN(const Driver* const driver, Driver::get());
  return on_device(device, "sharing memory", [&]() -> absl::StatusOr<SharedMemory> {
    GRADWIRE_ASSIGN_OR_RETURN(const Allocation allocation, allocation_of(*driver, device, data));
    SharedMemory shared{.handle = {},
                        .size = allocation.size,
                        .offset = reinterpret_cast<CUdeviceptr>(data) - allocation.begin};
    {
      MutexLock lock(mutex_);
      if (const auto found = handles_.find(allocation.number); found != handles_.end()) {
        shared.handle = found->second;
        return shared;
      }
    }
    cudaIpcMemHandle_t handle{};
    GRADWIRE_RETURN_IF_ERROR(
        cuda_status(cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(allocation.begin)),
                    "cudaIpcGetMemHandle", device));
    shared.handle.assign(handle.reserved, sizeof(handle.reserved));
    MutexLock lock(mutex_);
    if (handles_.size() >= kMaxKept) handles_.clear();
    handles_.emplace(allocation.number, shared.handle);
    return shared;
  });
}

absl::StatusOr<std::unique_ptr<OpenedMemory>> open_memory(c10::Device device, const std::string& handle,
                                                          uint64_t size) {
  cudaIpcMemHandle_t wanted{};
  if (handle.size() != sizeof(wanted.reserved)) {
    return absl::InvalidArgumentError(absl::StrCat("wrong handle of an allocation: got ", handle.size(),
                                                   " bytes, expected ", sizeof(wanted.reserved)));
  }
  std::memcpy(wanted.reserved, handle.data(), handle.size());
  GRADWIRE_ASSIGN_OR_RETURN(const Driver* const driver, Driver::get());
  return on_device(
      device, "opening memory of another process", [&]() -> absl::StatusOr<std::unique_ptr<OpenedMemory>> {
        void* data = nullptr;
        absl::Status status = cuda_status(cudaIpcOpenMemHandle(&data, wanted, cudaIpcMemLazyEnablePeerAccess),
                                          "cudaIpcOpenMemHandle", device);
        if (!status.ok()) {
          return absl::UnavailableError(absl::StrCat(
              status.message(), is_slice(device) ? "; the device is a slice of a GPU (MIG)" : "",
              "; the processes must be of the same user, and in containers with --ipc=host and --pid=host"));
        }
        auto opened = std::make_unique<CudaOpenedMemory>(device, data);
        GRADWIRE_RETURN_IF_ERROR(check_size(*driver, device, data, size));
        return opened;
      });
}

}  // namespace gradwire::device::cuda
