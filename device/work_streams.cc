#include "gradwire/device/work_streams.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/threads/execution_state.h"

namespace gradwire::device {
namespace {

thread_local std::shared_ptr<const WorkStreams> current;
// The streams that were current before `current`, in the same order.
thread_local std::vector<c10::Stream> own;

bool has_stream(const std::vector<c10::Stream>& streams, const c10::Device& device) {
  return std::any_of(streams.begin(), streams.end(),
                     [&](const c10::Stream& stream) { return stream.device() == device; });
}

void add_from_pool(const c10::Device& device, std::vector<c10::Stream>& streams) {
  try {
    streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
  } catch (const c10::Error&) {
    // The device is lost. Work on the others, and on the CPU, goes on; work on this one fails by itself.
  }
}

}  // namespace

void WorkStreams::set(std::shared_ptr<const WorkStreams> streams) {
  if (current == streams) return;
  // Streams may belong to several devices, so this thread's own ones come back before others are set.
  for (const c10::Stream& stream : own)
    c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
  own.clear();
  current = std::move(streams);
  if (current == nullptr) return;
  for (const c10::Stream& stream : current->streams()) {
    own.push_back(c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream));
  }
}

std::shared_ptr<const WorkStreams> WorkStreams::from_pool() {
  std::vector<c10::Stream> streams;
  for (const c10::Device& device : devices_in_use()) add_from_pool(device, streams);
  return streams.empty() ? nullptr : std::make_shared<const WorkStreams>(std::move(streams));
}

bool WorkStreams::covers(const c10::Device& device) {
  return current != nullptr && has_stream(current->streams(), device);
}

const std::shared_ptr<const WorkStreams>& WorkStreams::get() { return current; }

WorkStreams::Scope::Scope(std::shared_ptr<const WorkStreams> streams) : previous_(current) {
  set(std::move(streams));
}

std::shared_ptr<const WorkStreams> LastingStreams::get() {
  const std::vector<c10::Device> devices = devices_in_use();
  MutexLock lock(mutex_);
  if (streams_ != nullptr && streams_->streams().size() == devices.size()) return streams_;
  std::vector<c10::Stream> streams;
  if (streams_ != nullptr) streams = streams_->streams();
  for (const c10::Device& device : devices) {
    if (!has_stream(streams, device)) add_from_pool(device, streams);
  }
  if (!streams.empty()) streams_ = std::make_shared<const WorkStreams>(std::move(streams));
  return streams_;
}

std::optional<c10::DeviceType> accelerator() { return at::accelerator::getAccelerator(false); }

c10::DeviceIndex device_count() { return accelerator() ? at::accelerator::deviceCount() : 0; }

std::vector<c10::Device> devices_in_use() {
  std::vector<c10::Device> devices;
  const std::optional<c10::DeviceType> type = accelerator();
  if (!type) return devices;
  const at::AcceleratorHooksInterface& hooks = at::globalContext().getAcceleratorHooksInterface(*type);
  const c10::DeviceIndex count = at::accelerator::deviceCount();
  for (c10::DeviceIndex i = 0; i < count; ++i) {
    if (hooks.hasPrimaryContext(i)) devices.emplace_back(*type, i);
  }
  return devices;
}

[[maybe_unused]] const bool registered = [] {
  register_execution_slot({[] { return ExecutionState::Value(current); },
                           [](ExecutionState::Value& value) {
                             if (current == value) return;
                             ExecutionState::Value previous = current;
                             WorkStreams::set(std::static_pointer_cast<const WorkStreams>(std::move(value)));
                             value = std::move(previous);
                           }});
  return true;
}();

}  // namespace gradwire::device
