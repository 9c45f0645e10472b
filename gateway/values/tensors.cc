#include "gradwire/gateway/values/tensors.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/torch/tensors/tensor_layout.h"
#include "gradwire/gateway/values/dtypes.h"

namespace gradwire::gateway {
namespace {

constinit TensorBridge* installed_bridge = nullptr;

}  // namespace

void install_tensor_bridge(TensorBridge* bridge) { installed_bridge = bridge; }
TensorBridge* tensor_bridge() { return installed_bridge; }

absl::StatusOr<uint64_t> checked_bytes(const v1::Tensor& tensor) {
  const int64_t size = item_size(tensor.dtype());
  if (size == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown dtype of a tensor: got ", static_cast<int>(tensor.dtype())));
  }
  GRADWIRE_ASSIGN_OR_RETURN(rpc::TensorExtent extent, rpc::checked_extent(tensor.shape(), size));
  const std::size_t got = tensor.data().size();
  if (tensor.chunked() ? got != 0 : got != static_cast<uint64_t>(extent.bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("wrong length of a tensor's data: got ", got, " bytes, expected ",
                     tensor.chunked() ? 0 : extent.bytes,
                     tensor.chunked() ? " because its bytes come in chunks" : " for the shape [",
                     tensor.chunked() ? "" : absl::StrCat(absl::StrJoin(tensor.shape(), ", "), "]")));
  }
  return static_cast<uint64_t>(extent.bytes);
}

}  // namespace gradwire::gateway
