#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <exception>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/error.h"

namespace gradwire::collectives::nccl {

// The Status for a result of NCCL, with NCCL's own message. OK for ncclSuccess and ncclInProgress;
// Unavailable for errors of peers and of the network; Internal for all others. Never InvalidArgument, which
// stands for calls that this backend itself refuses. `comm` may be nullptr.
absl::Status to_status(ncclResult_t result, absl::string_view call, ncclComm_t comm = nullptr);
absl::Status to_status(cudaError_t result, absl::string_view call);

// Runs `run` and returns its result; an exception, such as libtorch's CUDA errors, becomes a Status.
template <class Run>
auto guarded(Run run) -> decltype(run()) {
  try {
    return run();
  } catch (...) {
    return status_from_exception(std::current_exception());
  }
}

}  // namespace gradwire::collectives::nccl
