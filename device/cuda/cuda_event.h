#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gradwire/device/device_transfer.h"

namespace gradwire::device::cuda {

// An event that other processes can open.
absl::StatusOr<std::unique_ptr<SharedEvent>> make_shared_event(c10::Device device);

// Opens an event of another process, on the same physical device. `handle` is untrusted: InvalidArgument if
// it has the wrong length.
absl::StatusOr<std::unique_ptr<SharedEvent>> open_shared_event(c10::Device device, const std::string& handle);

}  // namespace gradwire::device::cuda
