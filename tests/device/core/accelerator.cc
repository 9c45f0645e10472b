#include "gradwire/tests/device/core/accelerator.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace gradwire::lag {

Accelerator::Accelerator(const Options& options)
    : pool_streams_(static_cast<size_t>(options.pool_streams)),
      shared_(options.devices, options.profile, options.max_host_wait),
      devices_(static_cast<size_t>(options.devices)) {
  for (int device = 0; device < options.devices; device++) {
    Device& made = devices_[static_cast<size_t>(device)];
    made.memory = std::make_unique<Memory>(shared_, device, options.memory, options.capacity);
    // The default stream, the pool, and the pool of high priority.
    for (int64_t id = 0; id <= 2 * options.pool_streams; id++) {
      made.streams.push_back(std::make_unique<Stream>(shared_, device, id));
    }
  }
}

Accelerator::~Accelerator() { stop(); }

int Accelerator::device_of(const void* address) const {
  for (size_t device = 0; device < devices_.size(); device++) {
    if (devices_[device].memory->contains(address)) return static_cast<int>(device);
  }
  return -1;
}

Stream& Accelerator::default_stream(int device) { return *stream(device, 0); }

Stream& Accelerator::pool_stream(int device, bool high_priority) {
  MutexLock lock(mutex_);
  Device& found = devices_[static_cast<size_t>(device)];
  size_t& next = high_priority ? found.next_high_pool : found.next_pool;
  const size_t at = 1 + (high_priority ? pool_streams_ : 0) + next++ % pool_streams_;
  return *found.streams[at];
}

Stream& Accelerator::new_stream(int device) {
  MutexLock lock(mutex_);
  auto& streams = devices_[static_cast<size_t>(device)].streams;
  streams.push_back(std::make_unique<Stream>(shared_, device, static_cast<int64_t>(streams.size())));
  return *streams.back();
}

Stream* Accelerator::stream(int device, int64_t id) {
  MutexLock lock(mutex_);
  if (device < 0 || device >= devices()) return nullptr;
  const auto& streams = devices_[static_cast<size_t>(device)].streams;
  if (id < 0 || static_cast<size_t>(id) >= streams.size()) return nullptr;
  return streams[static_cast<size_t>(id)].get();
}

std::vector<Stream*> Accelerator::all_streams(int device) {
  MutexLock lock(mutex_);
  std::vector<Stream*> all;
  for (const auto& stream : devices_[static_cast<size_t>(device)].streams) all.push_back(stream.get());
  return all;
}

absl::Status Accelerator::synchronize(int device) {
  std::vector<Point> points;
  for (Stream* stream : all_streams(device)) points.push_back(stream->end());
  return shared_.wait(device, points, "device.synchronize");
}

Counts Accelerator::counts() {
  Counts counts;
  for (int device = 0; device < devices(); device++) {
    const Memory::Counts memory = this->memory(device).counts();
    counts.blocks += memory.blocks;
    counts.bytes += memory.bytes;
    counts.allocations += memory.allocations;
    counts.pending_blocks += memory.pending;
    for (const Stream* stream : all_streams(device)) {
      counts.streams += stream->started() ? 1 : 0;
      counts.busy_streams += stream->end().passed() ? 0 : 1;
    }
  }
  const HostMemory::Counts host = host_memory_.counts();
  counts.host_blocks = host.blocks;
  counts.pending_host_blocks = host.pending;
  counts.events = shared_.event_count();
  counts.host_waits = shared_.host_wait_count();
  counts.host_blocked = shared_.host_blocked_count();
  return counts;
}

std::string Accelerator::leftovers(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  Counts counts = this->counts();
  // The end of a stream is not announced to this thread, because it must not count as a host wait.
  while ((counts.busy_streams > 0 || counts.pending_blocks > 0 || counts.pending_host_blocks > 0) &&
         absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
    counts = this->counts();
  }
  std::string found;
  const auto add = [&found](int64_t number, const std::string& noun) {
    if (number != 0) absl::StrAppend(&found, found.empty() ? "" : ", ", number, " ", noun);
  };
  add(counts.blocks, absl::StrCat("blocks of device memory (", counts.bytes, " bytes)"));
  add(counts.pending_blocks, "freed blocks that wait for streams");
  add(counts.host_blocks, "blocks of pinned memory");
  add(counts.pending_host_blocks, "freed blocks of pinned memory that wait for streams");
  add(counts.events, "events");
  add(counts.busy_streams, "streams that have not finished");
  for (int device = 0; device < devices(); device++) {
    if (const absl::Status status = shared_.status(device); !status.ok()) {
      absl::StrAppend(&found, found.empty() ? "" : ", ", status.message());
    }
  }
  return found;
}

void Accelerator::stop() {
  for (int device = 0; device < devices(); device++) {
    for (Stream* stream : all_streams(device)) stream->stop();
  }
}

}  // namespace gradwire::lag
