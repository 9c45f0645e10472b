#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/device/device_transfer.h"

namespace gradwire::device::cuda {

// The handles of this process's own allocations. CUDA gives each allocation a number that it never uses
// again, so a handle is made once for each allocation. Thread-safe.
class MemoryHandles {
 public:
  // Number of handles that are kept. libtorch allocates segments, of which even a full GPU has fewer.
  static constexpr std::size_t kMaxKept = 4096;

  // As DeviceTransfer::share().
  absl::StatusOr<SharedMemory> share(c10::Device device, const void* data);

 private:
  Mutex mutex_;
  HashMap<uint64_t, std::string> handles_ ABSL_GUARDED_BY(mutex_);
};

// As DeviceTransfer::open(). InvalidArgument if the handle has the wrong length, or the allocation is smaller
// than `size`.
absl::StatusOr<std::unique_ptr<OpenedMemory>> open_memory(c10::Device device, const std::string& handle,
                                                          uint64_t size);

}  // namespace gradwire::device::cuda
