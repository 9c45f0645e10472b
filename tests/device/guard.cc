#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "gradwire/tests/device/allocator.h"
#include "gradwire/tests/device/core/event.h"
#include "gradwire/tests/device/runtime.h"

namespace gradwire::lag {
namespace {

Event& event_of(void* event) { return *static_cast<Event*>(event); }

// libtorch's access to devices, streams and events.
struct Guard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device old = getDevice();
    setDevice(device);
    return old;
  }
  c10::Device getDevice() const override { return torch_device(current_device()); }
  void setDevice(c10::Device device) const override { set_current_device(index_of(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(accelerator().devices());
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override {
    return torch_stream(current_stream(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return torch_stream(accelerator().default_stream(index_of(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return torch_stream(accelerator().pool_stream(index_of(device), high_priority));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return torch_stream(accelerator().pool_stream(index_of(device), priority < 0));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    Stream& next = stream_of(stream);
    const c10::Stream old = getStream(stream.device());
    set_current_stream(next);
    return old;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &stream_of(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    const absl::StatusOr<bool> done = stream_of(stream).query();
    check(done.status());
    return *done;
  }
  void synchronizeStream(const c10::Stream& stream) const override { check(stream_of(stream).synchronize()); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    check(accelerator().synchronize(index_of(torch_device(device))));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "event of device ", int{device},
                " cannot be recorded on a stream of device ", int{stream.device_index()});
    Stream& recorded = stream_of(stream);
    if (*event == nullptr) {
      check(accelerator().shared().status(recorded.device()));
      *event = new Event(accelerator().shared(), recorded.device(), flag == c10::EventFlag::BACKEND_DEFAULT);
    }
    check(event_of(*event).record(recorded));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) check(event_of(event).block(stream_of(stream)));
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    const absl::StatusOr<bool> passed = event_of(event).query();
    check(passed.status());
    return *passed;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) check(event_of(event).synchronize());
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* event1, void* event2, const c10::DeviceIndex) const override {
    TORCH_CHECK(event1 != nullptr && event2 != nullptr,
                "both events must be recorded before their time is taken");
    const absl::StatusOr<absl::Duration> time = event_of(event1).elapsed(event_of(event2));
    check(time.status());
    return absl::ToDoubleMilliseconds(*time);
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_stream(data, stream_of(stream));
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace
}  // namespace gradwire::lag
