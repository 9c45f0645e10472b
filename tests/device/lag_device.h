#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/tests/device/core/accelerator.h"
#include "gradwire/tests/device/core/profile.h"
#include "gradwire/tests/device/core/shared.h"

// For tests: an accelerator without a GPU. A program that links //tests/device:lag_device has the devices
// "lag:0" to "lag:2" (GRADWIRE_LAG_DEVICES sets another number), which libtorch knows as PrivateUse1.
// Streams, events, memory and copies follow CUDA's rules, and the kernels run late at random:
//
//   const at::Tensor x = at::randn({4, 4}).to(lag::device(0));
//   c10::Stream side = lag::new_stream(0);
//   lag::StreamHold hold(side);            // the side stream is busy until `hold` ends
//   { c10::StreamGuard guard(side); y = x.relu(); }
//   EXPECT_EQ(lag::counts().host_waits, before);
//
// Thread-safe, except where noted.
namespace gradwire::lag {

c10::Device device(int index);
int device_count();

// Streams of the pool in turn (8 per device; they repeat), or the default stream.
c10::Stream new_stream(int device);
c10::Stream default_stream(int device);
// A stream outside the pool, which no other part of the program uses. It exists until the process ends.
c10::Stream unshared_stream(int device);

// Puts a function at the end of a stream, as a kernel. It must not own tensors of devices, because a kernel
// does not keep memory.
void launch(const c10::Stream& stream, std::function<void()> kernel);

// How late kernels run from now on.
void set_lag(const Profile& profile);

Counts counts();
// The last 1000 calls in which a host thread waited, with the thread's name.
std::vector<HostWait> host_waits();

// Stops a stream at its present end, as a kernel that runs for a long time would, until it is released or
// destroyed. Holds of one stream end together.
class StreamHold {
 public:
  explicit StreamHold(const c10::Stream& stream);
  StreamHold(const StreamHold&) = delete;
  StreamHold& operator=(const StreamHold&) = delete;
  ~StreamHold();
  void release();

 private:
  c10::Stream stream_;
  bool held_ = true;
};

// Whether a stream does soon what is in it now. Without a hold it takes some milliseconds; false after a
// tenth of a second.
bool reaches_end_soon(const c10::Stream& stream);

// Every call for the device fails with c10::AcceleratorError, until restore(). What its streams have not
// started does not run.
void lose(int device, const std::string& why = "a test lost it");
void restore(int device);

// How many bytes of a device may be in use or cached. Allocations beyond that throw c10::OutOfMemoryError.
void set_capacity(int device, size_t bytes);

// If set, no memory of the host can be pinned any more: allocations of it throw c10::OutOfMemoryError.
std::atomic<bool>& pinning_refused();

// Blocks until all streams of all devices are done. Does not count as a host wait. Throws c10::Error after
// `timeout`.
void synchronize_all(absl::Duration timeout = absl::Seconds(60));

// In words what is still in use: tensors on devices, pinned memory, events, busy streams, lost devices. Empty
// if there is nothing. Waits up to ten seconds for streams to finish.
std::string leftovers();

// Whether all elements of a tensor are poison, the content of memory that nobody may read. `tensor` is on the
// CPU.
bool is_poison(const at::Tensor& tensor);

// The memory of a device, which another process can map: a memfd(2), its size, and where this process has it.
struct DeviceMemory {
  int fd = -1;
  size_t size = 0;
  std::byte* base = nullptr;
};
DeviceMemory device_memory(int device);

// The allocation that contains the data of a tensor: its place in the memory of its device, and its size.
struct MemoryBlock {
  size_t offset = 0;
  size_t size = 0;
};
// Throws c10::Error if the memory was not allocated by this process.
MemoryBlock block_of(const at::Tensor& tensor);

}  // namespace gradwire::lag
