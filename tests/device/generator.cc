#include "gradwire/tests/device/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>
#include <vector>

#include "gradwire/tests/device/runtime.h"

namespace gradwire::lag {
namespace {

// A generator of the CPU that belongs to another device.
struct DeviceGenerator final : public at::CPUGeneratorImpl {
  explicit DeviceGenerator(int device) {
    device_ = torch_device(device);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

}  // namespace

const at::Generator& default_generator(int device) {
  static const auto* all = [] {
    auto* made = new std::vector<at::Generator>();
    for (int i = 0; i < accelerator().devices(); i++) made->push_back(new_generator(i));
    return made;
  }();
  return all->at(static_cast<size_t>(device));
}

at::Generator new_generator(int device) { return at::make_generator<DeviceGenerator>(device); }

uint64_t draw_seed(const at::Generator& generator) {
  at::Generator drawn = generator;
  const std::lock_guard<std::mutex> lock(drawn.mutex());
  return static_cast<at::CPUGeneratorImpl*>(drawn.unsafeGetGeneratorImpl())->random64();
}

}  // namespace gradwire::lag
