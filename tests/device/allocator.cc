#include "gradwire/tests/device/allocator.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "gradwire/tests/device/core/memory.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/runtime.h"

namespace gradwire::lag {
namespace {

void free_block(void* block) {
  auto* freed = static_cast<Block*>(block);
  if (freed != nullptr) freed->memory().free(freed);
}

void free_pinned(void* data) {
  if (data != nullptr) accelerator().host_memory().free(data);
}

// libtorch asks about pinned memory only after it has noted that the device type is initialised.
void note_use() { at::globalContext().lazyInitDevice(c10::DeviceType::PrivateUse1); }

// The context of a DataPtr is its Block.
struct DeviceMemoryAllocator final : public c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override { return lag::allocate(current_device(), bytes); }
  void copy_data(void* to, const void* from, size_t count) const override {
    check(current_stream(accelerator().device_of(to)).launch([to, from, count] {
      std::memcpy(to, from, count);
    }));
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    for (int i = 0; i < accelerator().devices(); i++) accelerator().memory(i).release_cached();
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    record_stream(data, stream_of(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const Memory::Counts counts = accelerator().memory(index_of(torch_device(device))).counts();
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocation[0].current = counts.blocks;
    stats.allocated_bytes[0].current = counts.bytes;
    stats.reserved_bytes[0].current = counts.reserved;
    stats.num_ooms = counts.out_of_memory;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const Memory::Counts counts = accelerator().memory(index_of(torch_device(device))).counts();
    return {static_cast<size_t>(counts.capacity - counts.reserved), static_cast<size_t>(counts.capacity)};
  }
};

// The context of a DataPtr is its address.
struct PinnedMemory final : public at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    note_use();
    if (pinning_refused()) check(absl::ResourceExhaustedError("the system refuses to pin memory"));
    void* data = bytes == 0 ? nullptr : accelerator().host_memory().allocate(bytes);
    return {data, data, &free_pinned, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
  bool record_event(void* data, void*, c10::Stream stream) override {
    return accelerator().host_memory().record(data, stream_of(stream));
  }
  void empty_cache() override { accelerator().host_memory().release_cached(); }
  at::HostStats get_stats() override {
    const HostMemory::Counts counts = accelerator().host_memory().counts();
    at::HostStats stats;
    stats.active_requests.current = counts.blocks;
    stats.active_bytes.current = counts.bytes;
    return stats;
  }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

}  // namespace

std::atomic<bool>& pinning_refused() {
  static std::atomic<bool> refused{false};
  return refused;
}

void record_stream(const c10::DataPtr& data, Stream& stream) {
  if (data.get() == nullptr || data.get_deleter() != &free_block) return;
  auto* block = static_cast<Block*>(data.get_context());
  block->memory().record_stream(block, stream);
}

c10::DataPtr allocate(int device, size_t bytes) {
  note_use();
  if (bytes == 0) return {nullptr, torch_device(device)};
  const absl::StatusOr<Block*> block = accelerator().memory(device).allocate(bytes, current_stream(device));
  check(block.status());
  return {(*block)->data(), *block, &free_block, torch_device(device)};
}

c10::Allocator* device_allocator() {
  static auto* allocator = new DeviceMemoryAllocator();
  return allocator;
}

at::HostAllocator* host_allocator() {
  static auto* allocator = new PinnedMemory();
  return allocator;
}

}  // namespace gradwire::lag
