#include "gradwire/autograd/graph/graph_nodes.h"

#include <torch/csrc/autograd/functions/utils.h>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::autograd {

torch::autograd::variable_list RecvNode::apply(torch::autograd::variable_list&&) {
  throw Error(absl::FailedPreconditionError(
      absl::StrCat("loss.backward() cannot continue at worker \"", sender_.name,
                   "\", which sent a tensor of this graph in the autograd context ", rpc::to_string(context_),
                   ": call gradwire::autograd::backward(context, {loss}) instead")));
}

void set_outputs(const std::shared_ptr<RecvNode>& node, std::vector<at::Tensor*> tensors) {
  for (at::Tensor* tensor : tensors) {
    *tensor = tensor->detach();
    torch::autograd::set_history(*tensor, node);
  }
}

}  // namespace gradwire::autograd
