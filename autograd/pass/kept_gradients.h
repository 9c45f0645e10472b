#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/autograd/context/context_state.h"
#include "gradwire/autograd/graph/gradients.h"
#include "gradwire/proto/autograd.pb.h"

namespace gradwire::autograd {

// Where the gradients that end on one worker go: into the context, or apart from it for who asked for them.
// Thread-safe.
class KeptGradients {
 public:
  // `header` outlives it.
  KeptGradients(std::shared_ptr<ContextState> context, const proto::Pass& header)
      : context_(std::move(context)), header_(header) {}

  // The gradients of these tensors do not go into the context but are kept here, until take_apart(). Before
  // the pass.
  void keep_apart(const std::vector<at::Tensor>& tensors);
  Gradients take_apart();
  // Moves from pairs (tensor, gradient). FailedPrecondition for a tensor that arrived outside every context,
  // where the root wants none.
  absl::Status keep(std::vector<std::pair<at::Tensor, at::Tensor>>& gradients);

 private:
  // Notices gradients of tensors that arrived outside every context.
  absl::Status check_joined(const at::Tensor& tensor);
  bool is_apart(const at::Tensor& tensor);

  const std::shared_ptr<ContextState> context_;
  const proto::Pass& header_;
  // Guarded by the context's mutex: undefined where no gradient has come yet.
  Gradients apart_;
};

}  // namespace gradwire::autograd
