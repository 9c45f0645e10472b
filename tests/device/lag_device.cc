#include "gradwire/tests/device/lag_device.h"

#include <c10/util/Exception.h>

#include <utility>

#include "absl/time/clock.h"
#include "gradwire/tests/device/core/poison.h"
#include "gradwire/tests/device/runtime.h"

namespace gradwire::lag {

c10::Device device(int index) {
  TORCH_CHECK(index >= 0 && index < device_count(), "unknown device: got ", index,
              ", expected an index below ", device_count());
  return torch_device(index);
}

int device_count() { return accelerator().devices(); }

c10::Stream new_stream(int device) { return torch_stream(accelerator().pool_stream(device)); }

c10::Stream unshared_stream(int device) { return torch_stream(accelerator().new_stream(device)); }

c10::Stream default_stream(int device) { return torch_stream(accelerator().default_stream(device)); }

void launch(const c10::Stream& stream, std::function<void()> kernel) {
  check(stream_of(stream).launch(std::move(kernel)));
}

void set_lag(const Profile& profile) { accelerator().shared().set_profile(profile); }

Counts counts() { return accelerator().counts(); }

std::vector<HostWait> host_waits() { return accelerator().shared().host_waits(); }

StreamHold::StreamHold(const c10::Stream& stream) : stream_(stream) { stream_of(stream_).hold(); }

StreamHold::~StreamHold() { release(); }

void StreamHold::release() {
  if (!held_) return;
  held_ = false;
  stream_of(stream_).release();
}

bool reaches_end_soon(const c10::Stream& stream) {
  const Point end = stream_of(stream).end();
  const absl::Time deadline = absl::Now() + absl::Milliseconds(100);
  while (!end.passed()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Microseconds(100));
  }
  return true;
}

void lose(int device, const std::string& why) { accelerator().shared().lose(device, why); }

void restore(int device) { accelerator().shared().restore(device); }

void set_capacity(int device, size_t bytes) { accelerator().memory(device).set_capacity(bytes); }

void synchronize_all(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (const int64_t busy = counts().busy_streams) {
    TORCH_CHECK(absl::Now() < deadline, busy, " streams have not finished after ",
                absl::FormatDuration(timeout), "; release streams that the test holds");
    absl::SleepFor(absl::Microseconds(100));
  }
}

std::string leftovers() { return accelerator().leftovers(); }

bool is_poison(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.contiguous();
  return is_poison(bytes.const_data_ptr(), bytes.nbytes());
}

DeviceMemory device_memory(int device) {
  const Memory& memory = accelerator().memory(device);
  return {memory.fd(), memory.size(), memory.base()};
}

MemoryBlock block_of(const at::Tensor& tensor) {
  const Memory& memory = accelerator().memory(index_of(tensor.device()));
  const Block* block = memory.find(tensor.storage().data());
  TORCH_CHECK(block != nullptr, "the memory of the tensor was not allocated by this process");
  return {static_cast<size_t>(static_cast<std::byte*>(block->data()) - memory.base()), block->size()};
}

}  // namespace gradwire::lag
