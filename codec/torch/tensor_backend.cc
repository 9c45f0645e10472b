// Installs the tensor codec. The target is alwayslink, because no other code refers to it.
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/codec/torch/tensor_reader.h"
#include "gradwire/codec/torch/tensor_writer.h"
#include "gradwire/codec/torch/torch_tensors.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {
namespace {

// For each tensor of the payload, whether the autograd graph of the payload contains it.
absl::StatusOr<std::vector<bool>> in_graph(const proto::Payload& payload, std::size_t count) {
  std::vector<bool> in_graph(count, false);
  for (uint32_t index : payload.graph().tensors()) {
    if (index >= count) {
      return absl::InvalidArgumentError(
          absl::StrCat("the graph refers to tensor ", index, ", but the message has ", count, " tensors"));
    }
    in_graph[index] = true;
  }
  return in_graph;
}

// libtorch reports invalid arguments with exceptions. Converts them to InvalidArgument.
absl::Status refusal(const std::exception_ptr& exception) {
  const absl::Status status = status_from_exception(exception);
  if (status.code() == absl::StatusCode::kResourceExhausted) return status;
  return absl::InvalidArgumentError(status.message());
}

absl::Status at_index(const absl::Status& status, std::size_t index) {
  return with_context(status, absl::StrCat("tensor ", index, " of the message"));
}

// Both directions: an exception of libtorch ends the whole message with an error that names the tensor.
// Tensors of the message that were read before are dropped.
class TorchBackend : public TensorBackend {
 public:
  absl::Status encode(const TensorSet& tensors, TensorSharing sharing, proto::Payload& payload,
                      std::vector<transport::Buffer>& buffers) override {
    const auto& set = static_cast<const TorchTensors&>(tensors);
    GRADWIRE_ASSIGN_OR_RETURN(std::vector<bool> graph, in_graph(payload, set.tensors.size()));
    TensorWriter writer(sharing, buffers);
    const c10::NoGradGuard no_grad;
    for (std::size_t i = 0; i < set.tensors.size(); ++i) {
      proto::Tensor& out = *payload.add_tensors();
      try {
        if (absl::Status status = writer.write(set.tensors[i], set.given_away[i], out); !status.ok()) {
          return at_index(status, i);
        }
      } catch (...) {
        return at_index(refusal(std::current_exception()), i);
      }
      // A tensor in the graph gets its gradient through the graph of the call. Any other one is a new leaf
      // at the receiver, if it requires grad.
      out.set_requires_grad(set.tensors[i].requires_grad() && !graph[i]);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<TensorSet>> decode(const proto::Payload& payload,
                                                    std::vector<transport::Buffer> buffers) override {
    const auto count = static_cast<std::size_t>(payload.tensors_size());
    GRADWIRE_ASSIGN_OR_RETURN(std::vector<bool> graph, in_graph(payload, count));
    TensorReader reader(std::move(buffers));
    auto set = std::make_unique<TorchTensors>();
    set->tensors.reserve(count);
    // Received tensors are ordinary tensors, even if the mode of this thread is inference.
    const c10::InferenceMode ordinary(false);
    const c10::NoGradGuard no_grad;
    for (std::size_t i = 0; i < count; ++i) {
      const proto::Tensor& in = payload.tensors(static_cast<int>(i));
      try {
        absl::StatusOr<at::Tensor> tensor = reader.read(in);
        if (!tensor.ok()) return at_index(tensor.status(), i);
        if (in.requires_grad() && !graph[i]) tensor->set_requires_grad(true);
        set->add(*std::move(tensor), false);
      } catch (...) {
        return at_index(refusal(std::current_exception()), i);
      }
    }
    return set;
  }
};

[[maybe_unused]] const bool installed = [] {
  static TorchBackend backend;
  install_tensor_backend(&backend);
  return true;
}();

}  // namespace
}  // namespace gradwire::rpc
