#pragma once

namespace gradwire::collectives {

// Registers a backend for the tensors of the simulated accelerator (//tests/device), for the whole process.
// It works as nccl does: an operation is a kernel in a stream of the backend's own, which waits for the
// caller's current stream, and then for the other ranks. The kernel uses the device's memory by the reference
// backend, so the results are those of the CPU. The ranks are threads of one process, each with its own
// device.
void use_lag_backend();

}  // namespace gradwire::collectives
