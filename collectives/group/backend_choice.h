#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gradwire/collectives/checks/argument_checks.h"
#include "gradwire/collectives/group/backend_registry.h"

namespace gradwire::collectives {

// Which backends a group has: one, or the cpu's and beside it nccl's for CUDA tensors.
struct BackendChoice {
  Backend kind = Backend::kCpu;
  bool with_nccl = false;
};

// What a name in ProcessGroupOptions means. InvalidArgument as parse_backend.
absl::StatusOr<BackendChoice> choose_backend(const std::string& name);
// "cpu", "cpu and nccl", ...
std::string to_string(const BackendChoice& choice);

absl::StatusOr<std::unique_ptr<GroupBackend>> make_backend(const BackendChoice& choice,
                                                           const BackendContext& context);

// What tensors a group takes, into `group`; whether CUDA tensors must go through the host.
bool describe_devices(const BackendChoice& choice, ArgumentChecks::Group& group);

// One backend for CPU tensors, one for CUDA tensors; what has no tensor goes to the first.
std::unique_ptr<GroupBackend> combine_backends(std::unique_ptr<GroupBackend> cpu,
                                               std::unique_ptr<GroupBackend> cuda);

}  // namespace gradwire::collectives
