#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "absl/status/status.h"
#include "gradwire/tests/device/core/accelerator.h"
#include "gradwire/tests/device/core/stream.h"

namespace gradwire::lag {

// The accelerator of this process. It is made at the first call, with the number of devices of the
// environment variable GRADWIRE_LAG_DEVICES, or three. Its streams stop when the process exits.
Accelerator& accelerator();

// Numbers of c10::AcceleratorError, those of CUDA: cudaErrorLaunchFailure, which it reports for a failed
// kernel, and cudaErrorMemoryAllocation.
inline constexpr int kLost = 719;
inline constexpr int kOutOfMemory = 2;

// Throws what libtorch throws for a CUDA device in the same state: c10::OutOfMemoryError if memory is
// exhausted, c10::AcceleratorError if the device is lost, else c10::Error.
void check(const absl::Status& status);

// The index of a device of type PrivateUse1; -1 stands for the current device. Throws c10::Error if there is
// no such device.
int index_of(const c10::Device& device);
c10::Device torch_device(int index);

// The stream behind a libtorch stream, and the reverse. Throws c10::Error for an unknown stream.
Stream& stream_of(const c10::Stream& stream);
c10::Stream torch_stream(const Stream& stream);

// The current device of this thread, and its current stream on each device.
int current_device();
void set_current_device(int index);
Stream& current_stream(int device);
void set_current_stream(Stream& stream);

}  // namespace gradwire::lag
