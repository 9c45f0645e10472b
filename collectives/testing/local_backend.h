#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/collectives/group/backend_registry.h"

namespace gradwire::collectives::testing {

// A backend for groups whose ranks are threads of one process: they meet in a shared object, and the last one
// to come does everybody's work with libtorch's operators, one element after the other as it were. Slow and
// plain: what other backends are compared with. Also finds what ranks call at odds with one another
// (InvalidArgument).
absl::StatusOr<std::unique_ptr<GroupBackend>> make_local_backend(const BackendContext& context);

// Makes it the backend of this name, for the whole process.
void use_local_backend(Backend name = Backend::kCpu);

// What a reduction of these tensors, one from each rank, must give: combined in the order of the ranks.
at::Tensor reduce_reference(const std::vector<at::Tensor>& tensors, ReduceOp op);

}  // namespace gradwire::collectives::testing
