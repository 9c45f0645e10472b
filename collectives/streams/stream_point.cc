#include "gradwire/collectives/streams/stream_point.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/device/streams.h"

namespace gradwire::collectives {
namespace {

c10::Device with_index(const c10::impl::VirtualGuardImpl& impl, c10::Device device) {
  return device.has_index() ? device : impl.getDevice();
}

}  // namespace

StreamPoint StreamPoint::of_current(c10::Device device) {
  StreamPoint point;
  if (device.is_cpu()) return point;
  const c10::impl::VirtualGuardImpl impl(device.type());
  const c10::Stream stream = impl.getStream(with_index(impl, device));
  auto event = std::make_shared<c10::Event>(device.type());
  event->record(stream);
  point.event_ = std::move(event);
  return point;
}

void StreamPoint::block_current() const {
  if (event_ != nullptr) event_->block(device::current_stream(event_->device()));
}

SideStream::SideStream(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl impl(device.type());
  guard_.emplace(impl.getStreamFromGlobalPool(with_index(impl, device), /*isHighPriority=*/false));
}

void EnqueuedPoint::set(StreamPoint point) {
  MutexLock lock(mutex_);
  point_ = std::move(point);
}

StreamPoint EnqueuedPoint::point() const {
  MutexLock lock(mutex_);
  return point_;
}

std::optional<absl::Status> EnqueuedPoint::ended() const {
  try {
    if (!point().passed()) return std::nullopt;
    return absl::OkStatus();
  } catch (...) {
    return status_from_exception(std::current_exception());
  }
}

void EnqueuedPoint::order_current_stream() { point().block_current(); }

}  // namespace gradwire::collectives
