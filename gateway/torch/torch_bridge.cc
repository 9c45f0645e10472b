#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/codec/torch/tensors/tensor_layout.h"
#include "gradwire/codec/torch/tensors/tensor_memory.h"
#include "gradwire/codec/torch/tensors/torch_tensors.h"
#include "gradwire/gateway/values/dtypes.h"
#include "gradwire/gateway/values/tensors.h"

namespace gradwire::gateway {
namespace {

class TorchBridge final : public TensorBridge {
 public:
  absl::StatusOr<transport::Buffer> allocate(std::size_t size) override {
    return rpc::allocate_tensor_memory(size);
  }

  uint32_t add(TensorBytes tensor, rpc::Encoder& encoder) override {
    const auto dtype = static_cast<at::ScalarType>(torch_number(tensor.dtype));
    return static_cast<uint32_t>(encoder.tensors<rpc::TorchTensors>().add(
        rpc::tensor_over(std::move(tensor.bytes), tensor.shape, {}, dtype), /*give_away=*/true));
  }

  absl::StatusOr<TensorBytes> read(rpc::TensorSet& tensors, uint32_t index) override {
    auto& set = static_cast<rpc::TorchTensors&>(tensors);
    if (index >= set.tensors.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the tensor index ", index, " is out of range"));
    }
    try {
      const at::Tensor& tensor = set.tensors[index];
      const v1::DType dtype = dtype_of(static_cast<int>(tensor.scalar_type()));
      if (tensor.layout() != at::kStrided || !tensor.device().is_cpu() || dtype == v1::DTYPE_UNSPECIFIED) {
        return absl::InvalidArgumentError(
            absl::StrCat("the result has a tensor that the gateway does not pass to its clients: got ",
                         c10::str(tensor.layout()), " ", c10::toString(tensor.scalar_type()), " on ",
                         tensor.device().str(), ", expected a dense one on the CPU"));
      }
      auto dense = std::make_shared<at::Tensor>(tensor.detach().resolve_conj().resolve_neg().contiguous());
      TensorBytes bytes;
      bytes.dtype = dtype;
      bytes.shape.assign(dense->sizes().begin(), dense->sizes().end());
      bytes.bytes = transport::Buffer(dense->data_ptr(), dense->nbytes(), dense);
      return bytes;
    } catch (...) {
      return caught("reading a tensor of the result");
    }
  }
};

[[maybe_unused]] const bool installed = [] {
  install_tensor_bridge(new TorchBridge);
  return true;
}();

}  // namespace
}  // namespace gradwire::gateway
