#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>

#include "gradwire/tests/device/allocator.h"
#include "gradwire/tests/device/copy.h"
#include "gradwire/tests/device/generator.h"
#include "gradwire/tests/device/runtime.h"

namespace gradwire::lag {
namespace {

// libtorch's access to what DeviceGuardImplInterface does not offer.
struct Hooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return accelerator().shared().used(index_of(torch_device(device)));
  }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(accelerator().devices());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    set_current_device(index_of(torch_device(device)));
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex old = getCurrentDevice();
    setCurrentDevice(device);
    return old;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(index_of(torch_device(device)));
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(index_of(torch_device(device)));
  }
  c10::Device getDeviceFromPtr(void* data) const override {
    const int device = accelerator().device_of(data);
    TORCH_CHECK(device >= 0, "the address does not belong to a device of type lag");
    return torch_device(device);
  }
  bool isPinnedPtr(const void* data) const override { return accelerator().host_memory().contains(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return host_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

[[maybe_unused]] const bool device_registered = [] {
  c10::register_privateuse1_backend("lag");
  c10::SetAllocator(c10::DeviceType::PrivateUse1, device_allocator());
  at::setHostAllocator(c10::DeviceType::PrivateUse1, host_allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace
}  // namespace gradwire::lag
