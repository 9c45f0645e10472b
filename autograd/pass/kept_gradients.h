#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/autograd/context/context_state.h"
#include "gradwire/autograd/graph/gradients.h"
#include "gradwire/proto/autograd.pb.h"

namespace gradwire::autograd {

// Stores the gradients that a pass computes for tensors of one worker: in the context, or apart from it for
// the caller that requested them. Thread-safe.
class KeptGradients {
 public:
  // `header` must outlive this object.
  KeptGradients(std::shared_ptr<ContextState> context, const proto::Pass& header)
      : context_(std::move(context)), header_(header) {}

  // From now on the gradients of these tensors are kept here until take_apart(), and not in the context. Must
  // be called before the pass starts.
  void keep_apart(const std::vector<at::Tensor>& tensors);
  // Returns the gradients that were kept apart, ready on the current streams of the calling thread, and
  // forgets them.
  Gradients take_apart();
  // Adds the gradients of pairs (tensor, gradient), and clears the list. The gradients must be ready on the
  // current streams of the calling thread. FailedPrecondition for a tensor that
  // arrived outside every context, if the root has set require_joined.
  absl::Status keep(std::vector<std::pair<at::Tensor, at::Tensor>>& gradients);

 private:
  // Counts and reports the gradient of a tensor that arrived outside every context.
  absl::Status check_joined(const at::Tensor& tensor);
  bool is_apart(const at::Tensor& tensor);

  const std::shared_ptr<ContextState> context_;
  const proto::Pass& header_;
  // Guarded by the context's mutex. A gradient is undefined until the first contribution arrives.
  Gradients apart_;
};

}  // namespace gradwire::autograd
