#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/collectives/checks/argument_checks.h"
#include "gradwire/collectives/registry/backend_registry.h"

namespace gradwire::collectives {

// The backends of a group: one backend, or cpu for CPU tensors together with one backend for the tensors of
// each type of accelerator that has a registered one.
struct BackendChoice {
  Backend kind = Backend::kCpu;
  // Only with kCpu; in the order of the types of devices.
  std::vector<AcceleratorBackend> accelerators;
};

// The backends that a name in ProcessGroupOptions stands for. Errors: InvalidArgument, as parse_backend.
absl::StatusOr<BackendChoice> choose_backend(const std::string& name);
// For messages: "cpu", "cpu and nccl", ...
std::string to_string(const BackendChoice& choice);

// Makes this rank's end of the group. Errors: the errors of the backends' factories.
absl::StatusOr<std::unique_ptr<GroupBackend>> make_backend(const BackendChoice& choice,
                                                           const BackendContext& context);

// The devices whose tensors the group accepts, with the backend of each. The cpu backend alone also takes the
// tensors of accelerators: they are copied to the memory of the host and back.
std::vector<ServedDevice> served_devices(const BackendChoice& choice);

// A backend of a group, and the type of device whose tensors it serves.
struct DeviceBackend {
  c10::DeviceType type = c10::DeviceType::CPU;
  std::unique_ptr<GroupBackend> backend;
};
// Combines the backends of one group, one for each type of device. Operations without a tensor go to the
// first one. Barriers that name devices, and collectives with several devices for each rank, go to the second
// one. `backends`: at least two, all with the same members.
std::unique_ptr<GroupBackend> combine_backends(std::vector<DeviceBackend> backends);

}  // namespace gradwire::collectives
