#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace gradwire::tools {

// How many of NVIDIA's GPUs a program started here would see, learned without CUDA, so that the launcher
// needs neither it nor libtorch. The driver's device files are counted (nvidia0, nvidia1, ...; a container
// has those it may use), else the driver's entries in /proc, since the files may be made only when they are
// first used. CUDA_VISIBLE_DEVICES chooses among them as CUDA reads it: up to the first entry that names no
// device; empty: none.
int count_visible_gpus(const std::optional<std::string>& cuda_visible_devices,
                       const std::string& device_directory = "/dev",
                       const std::string& driver_directory = "/proc/driver/nvidia/gpus");
// Of this process.
int count_visible_gpus();

// The device of one of `local_world_size` workers on a machine with `gpus` visible GPUs: "cuda:<local_rank>",
// or "cpu" without GPUs. InvalidArgument, naming both numbers, if not every worker gets one of its own.
absl::StatusOr<std::string> choose_device(int gpus, int local_rank, int local_world_size);

}  // namespace gradwire::tools
