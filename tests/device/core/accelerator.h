#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/tests/device/core/host_memory.h"
#include "gradwire/tests/device/core/memory.h"
#include "gradwire/tests/device/core/profile.h"
#include "gradwire/tests/device/core/shared.h"
#include "gradwire/tests/device/core/stream.h"

namespace gradwire::lag {

struct Options {
  int devices = 3;
  // Streams in the pool of each device and priority.
  int pool_streams = 8;
  // Addresses reserved for each device, and the bytes of them that may be in use.
  size_t memory = size_t{4} << 30;
  size_t capacity = size_t{1} << 30;
  Profile profile = {};
  // A host thread that waits longer for a device gets DeadlineExceeded.
  absl::Duration max_host_wait = absl::Seconds(60);
};

// The state of an accelerator at one time.
struct Counts {
  // Blocks of device memory that the program has, and their bytes.
  int64_t blocks = 0;
  int64_t bytes = 0;
  // Allocations of device memory since the start.
  int64_t allocations = 0;
  // Freed blocks that wait for streams of record_stream().
  int64_t pending_blocks = 0;
  int64_t host_blocks = 0;
  int64_t pending_host_blocks = 0;
  int64_t events = 0;
  // Streams that have been used, and those that have not finished.
  int64_t streams = 0;
  int64_t busy_streams = 0;
  // Calls in which a host thread waited for a device, and those in which the device had not finished yet.
  int64_t host_waits = 0;
  int64_t host_blocked = 0;
};

// A simulated accelerator without libtorch: devices with streams, events and memory, and pinned host memory.
// It behaves as CUDA in what it orders and what it does not, and runs kernels late at random.
//
// Thread-safe. Its streams, memory and events must not be used after it.
class Accelerator {
 public:
  explicit Accelerator(const Options& options = {});
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;
  // Stops all streams. Kernels that have not started do not run.
  ~Accelerator();

  int devices() const { return shared_.devices(); }
  Shared& shared() { return shared_; }
  Memory& memory(int device) { return *devices_[static_cast<size_t>(device)].memory; }
  HostMemory& host_memory() { return host_memory_; }
  // The device whose memory contains the address, or -1.
  int device_of(const void* address) const;

  // Stream 0 of the device.
  Stream& default_stream(int device);
  // The streams of the pool in turn. The same stream has several users if there are more than the pool holds.
  Stream& pool_stream(int device, bool high_priority = false);
  // A stream that nobody else has.
  Stream& new_stream(int device);
  // The stream with this id, or null.
  Stream* stream(int device, int64_t id);

  // Blocks the calling thread until all streams of the device have done what is in them now.
  absl::Status synchronize(int device);

  Counts counts();
  // The differences from an accelerator that nobody uses, in words; empty if nothing does. Waits up to
  // `timeout` for streams to finish.
  std::string leftovers(absl::Duration timeout = absl::Seconds(10));

  // Stops all streams. May be called twice. Later kernels do not run.
  void stop();

 private:
  struct Device {
    std::unique_ptr<Memory> memory;
    std::vector<std::unique_ptr<Stream>> streams;
    size_t next_pool = 0;
    size_t next_high_pool = 0;
  };

  std::vector<Stream*> all_streams(int device);

  const size_t pool_streams_;
  Shared shared_;
  HostMemory host_memory_;

  Mutex mutex_;
  // The vector, and each `memory`, are set once. The other members are guarded by `mutex_`.
  std::vector<Device> devices_;
};

}  // namespace gradwire::lag
