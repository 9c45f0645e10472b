#include "gradwire/tests/device/runtime.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>

#include "absl/strings/numbers.h"

namespace gradwire::lag {
namespace {

thread_local int this_device = 0;
// Ids of streams by device. A device that is missing has stream 0.
thread_local std::map<int, int64_t> this_streams;

Accelerator* make() {
  Options options;
  if (const char* devices = std::getenv("GRADWIRE_LAG_DEVICES")) {
    TORCH_CHECK(absl::SimpleAtoi(devices, &options.devices) && options.devices > 0 && options.devices < 100,
                "GRADWIRE_LAG_DEVICES: got \"", devices, "\", expected a number from 1 to 99");
  }
  // Never destroyed, because static objects may own tensors.
  static Accelerator* made = new Accelerator(options);
  static const pid_t process = ::getpid();
  // A stream must not run operators while libtorch's static objects are destroyed. In a process that was
  // forked, the threads do not exist.
  std::atexit([] {
    if (::getpid() == process) made->stop();
  });
  return made;
}

}  // namespace

Accelerator& accelerator() {
  static Accelerator* made = make();
  return *made;
}

void check(const absl::Status& status) {
  if (status.ok()) return;
  const std::string message(status.message());
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  if (absl::IsResourceExhausted(status)) throw c10::OutOfMemoryError(here, message);
  if (absl::IsUnavailable(status)) throw c10::AcceleratorError(here, kLost, message);
  throw c10::Error(here, message);
}

int index_of(const c10::Device& device) {
  TORCH_CHECK(device.type() == c10::DeviceType::PrivateUse1, "got device ", device,
              ", expected a device of type lag");
  if (!device.has_index()) return current_device();
  TORCH_CHECK(device.index() < accelerator().devices(), "unknown device: got lag:", int{device.index()},
              ", expected an index below ", accelerator().devices());
  return device.index();
}

c10::Device torch_device(int index) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

Stream& stream_of(const c10::Stream& stream) {
  Stream* found = accelerator().stream(index_of(stream.device()), stream.id());
  TORCH_CHECK(found != nullptr, "unknown stream: got id ", stream.id(), " of device ", stream.device());
  return *found;
}

c10::Stream torch_stream(const Stream& stream) {
  return c10::Stream(c10::Stream::UNSAFE, torch_device(stream.device()), stream.id());
}

int current_device() { return this_device; }

void set_current_device(int index) { this_device = index; }

Stream& current_stream(int device) {
  const auto found = this_streams.find(device);
  return *accelerator().stream(device, found == this_streams.end() ? 0 : found->second);
}

void set_current_stream(Stream& stream) { this_streams[stream.device()] = stream.id(); }

}  // namespace gradwire::lag
