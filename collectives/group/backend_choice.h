#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gradwire/collectives/checks/argument_checks.h"
#include "gradwire/collectives/group/backend_registry.h"

namespace gradwire::collectives {

// The backends of a group: one backend, or cpu for CPU tensors together with nccl for CUDA tensors.
struct BackendChoice {
  Backend kind = Backend::kCpu;
  // Whether CUDA tensors go to nccl; only with kCpu.
  bool with_nccl = false;
};

// The backends that a name in ProcessGroupOptions stands for. Errors: InvalidArgument, as parse_backend.
absl::StatusOr<BackendChoice> choose_backend(const std::string& name);
// For messages: "cpu", "cpu and nccl", ...
std::string to_string(const BackendChoice& choice);

// Makes this rank's end of the group. Errors: the errors of the backends' factories.
absl::StatusOr<std::unique_ptr<GroupBackend>> make_backend(const BackendChoice& choice,
                                                           const BackendContext& context);

// Writes into `group` which tensors the group accepts. Returns whether CUDA tensors must be copied to the
// memory of the host.
bool describe_devices(const BackendChoice& choice, ArgumentChecks::Group& group);

// Combines a backend for CPU tensors and one for CUDA tensors. Operations without a tensor go to `cpu`.
std::unique_ptr<GroupBackend> combine_backends(std::unique_ptr<GroupBackend> cpu,
                                               std::unique_ptr<GroupBackend> cuda);

}  // namespace gradwire::collectives
