#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>

#include "gradwire/tests/device/core/stream.h"

namespace gradwire::lag {

// The memory of `data` is used on `stream`. Memory that is not the allocator's own is ignored, as by CUDA's.
void record_stream(const c10::DataPtr& data, Stream& stream);

// Memory of the device, allocated on the thread's current stream of the device.
c10::DataPtr allocate(int device, size_t bytes);

// The allocators that libtorch uses, for memory of the current device and for pinned memory.
c10::Allocator* device_allocator();
at::HostAllocator* host_allocator();

}  // namespace gradwire::lag
