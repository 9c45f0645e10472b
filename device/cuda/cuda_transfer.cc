#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/device/cuda/cuda_calls.h"
#include "gradwire/device/cuda/cuda_event.h"
#include "gradwire/device/cuda/cuda_memory.h"
#include "gradwire/device/device_transfer.h"

namespace gradwire::device::cuda {
namespace {

absl::StatusOr<int> attribute(c10::Device device, cudaDeviceAttr which) {
  int value = 0;
  GRADWIRE_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&value, which, device.index()), "cudaDeviceGetAttribute", device));
  return value;
}

absl::Status cannot_share(c10::Device device, absl::string_view why) {
  return absl::UnavailableError(
      absl::StrCat("memory of ", device.str(), " cannot be shared with other processes: ", why));
}

// Whether the device lets two processes use it, and share events.
absl::Status check_attributes(c10::Device device) {
  GRADWIRE_ASSIGN_OR_RETURN(const int unified, attribute(device, cudaDevAttrUnifiedAddressing));
  GRADWIRE_ASSIGN_OR_RETURN(const int events, attribute(device, cudaDevAttrIpcEventSupport));
  GRADWIRE_ASSIGN_OR_RETURN(const int mode, attribute(device, cudaDevAttrComputeMode));
  GRADWIRE_ASSIGN_OR_RETURN(const int mps, attribute(device, cudaDevAttrMpsEnabled));
  if (unified == 0) return cannot_share(device, "it has no unified addressing");
  if (events == 0) return cannot_share(device, "its driver does not support events between processes");
  if (mode == cudaComputeModeProhibited) return cannot_share(device, "its compute mode is \"prohibited\"");
  // Under MPS the processes share the one that may use the device.
  if ((mode == cudaComputeModeExclusive || mode == cudaComputeModeExclusiveProcess) && mps == 0) {
    return cannot_share(device, "its compute mode lets only one process use it (nvidia-smi -c DEFAULT)");
  }
  return absl::OkStatus();
}

// Whether the memory that libtorch allocates from now on can be shared.
absl::Status check_allocator(c10::Device device) {
  if (c10::cuda::CUDACachingAllocator::get()->name() != "native") {
    return cannot_share(device,
                        absl::StrCat("libtorch's allocator is ", c10::cuda::CUDACachingAllocator::name(),
                                     "; set PYTORCH_CUDA_ALLOC_CONF=backend:native"));
  }
  if (c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::expandable_segments()) {
    return cannot_share(device,
                        "libtorch allocates expandable segments; unset expandable_segments in "
                        "PYTORCH_CUDA_ALLOC_CONF");
  }
  return absl::OkStatus();
}

// The UUID in the usual form. A slice of a GPU (MIG) has its own.
absl::StatusOr<std::string> uuid_of(c10::Device device) {
  GRADWIRE_ASSIGN_OR_RETURN(const Driver* const driver, Driver::get());
  CUdevice handle = 0;
  CUuuid uuid{};
  // CUDA_VISIBLE_DEVICES numbers the devices of the driver as those of the runtime.
  GRADWIRE_RETURN_IF_ERROR(
      driver->status(driver->device_get(&handle, device.index()), "cuDeviceGet", device));
  GRADWIRE_RETURN_IF_ERROR(driver->status(driver->device_uuid(&uuid, handle), "cuDeviceGetUuid", device));
  const std::string hex = absl::BytesToHexString(absl::string_view(uuid.bytes, sizeof(uuid.bytes)));
  return absl::StrCat(hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-", hex.substr(16, 4),
                      "-", hex.substr(20));
}

// Two processes share memory by the handles of CUDA's interface for processes ("legacy IPC"), as libtorch's
// own agent and torch.multiprocessing do.
class CudaTransfer final : public DeviceTransfer {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }

  absl::StatusCode meaning(int error) const override {
    return error_meaning(static_cast<cudaError_t>(error));
  }

  absl::StatusOr<std::string> identity(c10::Device device) override try {
    return facts(device).identity;
  } catch (...) {
    return unavailable(std::current_exception(), "finding the UUID", device);
  }

  absl::Status can_share(c10::Device device) override try {
    GRADWIRE_RETURN_IF_ERROR(facts(device).can_share);
    return check_allocator(device);
  } catch (...) {
    return unavailable(std::current_exception(), "finding whether memory can be shared", device);
  }

  absl::StatusOr<SharedMemory> share(c10::Device device, const void* data) override {
    return handles_.share(device, data);
  }
  absl::StatusOr<std::unique_ptr<OpenedMemory>> open(c10::Device device, const std::string& handle,
                                                     uint64_t size) override {
    return open_memory(device, handle, size);
  }
  absl::StatusOr<std::unique_ptr<SharedEvent>> make_event(c10::Device device) override {
    return make_shared_event(device);
  }
  absl::StatusOr<std::unique_ptr<SharedEvent>> open_event(c10::Device device,
                                                          const std::string& handle) override {
    return open_shared_event(device, handle);
  }

  absl::Status copy(void* to, const void* from, std::size_t size, const c10::Stream& stream) override {
    return on_device(stream.device(), "copying memory of another process", [&] {
      return cuda_status(
          cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, c10::cuda::CUDAStream(stream).stream()),
          "cudaMemcpyAsync", stream.device());
    });
  }

 private:
  // These facts do not change while the process runs. Every message needs them, so they are kept.
  struct Facts {
    absl::StatusOr<std::string> identity;
    absl::Status can_share;
  };

  Facts facts(c10::Device device) {
    {
      MutexLock lock(mutex_);
      if (const auto found = facts_.find(device.index()); found != facts_.end()) return found->second;
    }
    Facts found{.identity = absl::UnknownError(""), .can_share = check_device(device)};
    found.identity = found.can_share.ok() ? uuid_of(device) : found.can_share;
    if (found.can_share.ok()) found.can_share = check_attributes(device);
    // A wrong index is not kept, so that callers cannot fill the table.
    if (!found.identity.ok()) return found;
    MutexLock lock(mutex_);
    return facts_.try_emplace(device.index(), std::move(found)).first->second;
  }

  MemoryHandles handles_;
  Mutex mutex_;
  HashMap<c10::DeviceIndex, Facts> facts_ ABSL_GUARDED_BY(mutex_);
};

// Never destroyed: agents may use it until the process ends.
[[maybe_unused]] const bool registered = [] {
  register_device_transfer(new CudaTransfer);
  return true;
}();

}  // namespace
}  // namespace gradwire::device::cuda
