#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace gradwire::tools {

// Returns the number of NVIDIA GPUs that a program on this machine would see. Does not use CUDA, so that the
// launcher needs neither CUDA nor libtorch. Counts the driver's device files (nvidia0, nvidia1, ...; a
// container has those that it may use). If there are none, counts the driver's entries in /proc, because the
// device files may be created only at the first use. CUDA_VISIBLE_DEVICES selects among them as in CUDA:
// entries count up to the first one that does not name a device; an empty value selects no GPU.
int count_visible_gpus(const std::optional<std::string>& cuda_visible_devices,
                       const std::string& device_directory = "/dev",
                       const std::string& driver_directory = "/proc/driver/nvidia/gpus");
// The same, with the CUDA_VISIBLE_DEVICES of this process.
int count_visible_gpus();

// Returns the device of one of `local_world_size` workers on a machine with `gpus` visible GPUs:
// "cuda:<local_rank>", or "cpu" without GPUs. InvalidArgument, which names both numbers, if there are more
// workers than GPUs.
absl::StatusOr<std::string> choose_device(int gpus, int local_rank, int local_world_size);

}  // namespace gradwire::tools
