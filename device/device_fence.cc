#include "gradwire/device/device_fence.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/device/streams.h"
#include "gradwire/device/work_streams.h"

namespace gradwire::device {
namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

std::vector<WeakStorage> storages_of(const std::vector<at::Tensor>& tensors) {
  std::vector<WeakStorage> storages;
  for (const at::Tensor& tensor : tensors) {
    for_each_part(tensor, [&storages](const at::Tensor& part) {
      storages.push_back(part.storage().getWeakStorageImpl());
    });
  }
  return storages;
}

void record_use_of(const c10::DataPtr& memory) {
  const c10::Device device = memory.device();
  c10::impl::VirtualGuardImpl(device.type()).recordDataPtrOnStream(memory, current_stream(device));
}

}  // namespace

StreamFencePtr DeviceFence::record_on(const std::vector<c10::Device>& devices,
                                      std::vector<WeakStorage> storages, bool strict) {
  if (devices.empty()) return nullptr;
  auto fence = std::make_shared<DeviceFence>();
  MutexLock lock(fence->mutex_);
  for (const c10::Device& device : devices) {
    try {
      // Some kinds of devices demand that the device of an event is the current one.
      const c10::DeviceGuard guard(device);
      const c10::Stream stream = current_stream(device);
      Point point{stream, c10::Event(device.type())};
      point.event.record(stream);
      fence->points_.push_back(std::move(point));
    } catch (...) {
      fence->failure_.Update(status_from_exception(std::current_exception()));
    }
  }
  fence->strict_ = strict;
  fence->storages_ = std::move(storages);
  return fence;
}

StreamFencePtr DeviceFence::record(const std::vector<at::Tensor>& tensors) {
  return record_on(devices_in_use(), storages_of(tensors), /*strict=*/false);
}

StreamFencePtr DeviceFence::record_for(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    if (!has_streams(tensor)) continue;
    if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) {
      devices.push_back(tensor.device());
    }
  }
  return record_on(devices, storages_of(tensors), /*strict=*/true);
}

absl::Status DeviceFence::wait() const {
  absl::Status failure = failure_;
  MutexLock lock(mutex_);
  // One device that is lost must not keep the others from waiting.
  for (const Point& point : points_) {
    try {
      const c10::Stream now = current_stream(point.stream.device());
      if (now != point.stream) point.event.block(now);
    } catch (...) {
      failure.Update(status_from_exception(std::current_exception()));
    }
  }
  for (const WeakStorage& weak : storages_) {
    try {
      if (const auto storage = weak.lock()) record_use_of(storage->data_ptr());
    } catch (...) {
      failure.Update(status_from_exception(std::current_exception()));
    }
  }
  return strict_ ? failure : absl::OkStatus();
}

absl::StatusOr<bool> DeviceFence::reached() const try {
  if (!failure_.ok()) return failure_;
  MutexLock lock(mutex_);
  return std::all_of(points_.begin(), points_.end(), [](const Point& point) { return point.event.query(); });
} catch (...) {
  return status_from_exception(std::current_exception());
}

void record_fences() {
  install_stream_recorder([](const stream_fence_internal::Tensors& found) {
    std::vector<at::Tensor> tensors;
    for (const void* tensor : found.tensors)
      tensors.emplace_back(*static_cast<const at::TensorBase*>(tensor));
    return found.others ? DeviceFence::record(tensors) : DeviceFence::record_for(tensors);
  });
}

}  // namespace gradwire::device
