#include "gradwire/collectives/nccl/nccl_status.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace gradwire::collectives::nccl {

absl::Status to_status(ncclResult_t result, absl::string_view call, ncclComm_t comm) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  const char* const last = ncclGetLastError(comm);
  const std::string text = absl::StrCat(
      call, ": ", ncclGetErrorString(result), last == nullptr || *last == '\0' ? "" : " (NCCL's last error: ",
      last == nullptr || *last == '\0' ? "" : last, last == nullptr || *last == '\0' ? "" : ")");
  switch (result) {
    case ncclRemoteError:
    case ncclSystemError:
      return absl::UnavailableError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::Status to_status(cudaError_t result, absl::string_view call) {
  if (result == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": ", cudaGetErrorString(result)));
}

}  // namespace gradwire::collectives::nccl
