#include "gradwire/device/device_transfer.h"

#include <array>

namespace gradwire::device {
namespace {

using Table =
    std::array<DeviceTransfer*, static_cast<std::size_t>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES)>;

// Constant-initialised, because registrations may come before this file's own static initialisation.
constinit Table transfers{};

}  // namespace

void register_device_transfer(DeviceTransfer* transfer) {
  transfers[static_cast<std::size_t>(transfer->type())] = transfer;
}

DeviceTransfer* device_transfer(c10::DeviceType type) { return transfers[static_cast<std::size_t>(type)]; }

}  // namespace gradwire::device
