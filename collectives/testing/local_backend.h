#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/collectives/registry/backend_registry.h"

namespace gradwire::collectives::testing {

// A reference backend for groups whose ranks are threads of one process. The ranks share one object (Room),
// and the last rank to arrive runs the operation for all ranks with libtorch's operators. It is slow and
// simple; tests compare other backends with it. It also detects ranks that call different operations
// (InvalidArgument).
absl::StatusOr<std::unique_ptr<GroupBackend>> make_local_backend(const BackendContext& context);

// Registers it as the backend of this name, for the whole process.
void use_local_backend(Backend name = Backend::kCpu);

// The expected result of a reduction of these tensors, one from each rank. They are combined in the order of
// the ranks.
at::Tensor reduce_reference(const std::vector<at::Tensor>& tensors, ReduceOp op);

}  // namespace gradwire::collectives::testing
