#include "gradwire/device/device_fence.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <optional>

#include "gradwire/device/streams.h"

namespace gradwire::device {

DeviceFence DeviceFence::record() {
  DeviceFence fence;
  const std::optional<c10::DeviceType> type = at::accelerator::getAccelerator();
  if (!type) return fence;
  const at::AcceleratorHooksInterface& hooks = at::globalContext().getAcceleratorHooksInterface(type);
  const c10::DeviceIndex devices = at::accelerator::deviceCount();
  for (c10::DeviceIndex index = 0; index < devices; ++index) {
    if (hooks.hasPrimaryContext(index)) fence.record_on(c10::Device(*type, index));
  }
  return fence;
}

DeviceFence DeviceFence::record(const std::vector<at::Tensor>& tensors) {
  DeviceFence fence;
  for (const at::Tensor& tensor : tensors) {
    if (has_streams(tensor)) fence.record_on(tensor.device());
  }
  return fence;
}

void DeviceFence::record_on(c10::Device device) {
  const bool known = std::any_of(points_.begin(), points_.end(),
                                 [device](const Point& point) { return point.stream.device() == device; });
  if (known) return;
  const c10::DeviceGuard guard(device);
  Point point{current_stream(device), c10::Event(device.type())};
  point.event.record(point.stream);
  points_.push_back(std::move(point));
}

void DeviceFence::wait() const {
  for (const Point& point : points_) {
    const c10::Stream current = current_stream(point.stream.device());
    if (current != point.stream) point.event.block(current);
  }
}

}  // namespace gradwire::device
