#include "gradwire/autograd/pass/kept_gradients.h"

#include "absl/strings/str_cat.h"
#include "gradwire/autograd/context/unjoined.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"

namespace gradwire::autograd {

void KeptGradients::keep_apart(const std::vector<at::Tensor>& tensors) {
  MutexLock lock(context_->mutex);
  for (const at::Tensor& tensor : tensors) apart_[tensor];
}

Gradients KeptGradients::take_apart() {
  MutexLock lock(context_->mutex);
  return std::exchange(apart_, {}).hand_out();
}

absl::Status KeptGradients::keep(std::vector<std::pair<at::Tensor, at::Tensor>>& gradients) {
  if (gradients.empty()) return absl::OkStatus();
  // All tensors are checked before the first gradient is added, so a refused pass leaves nothing behind
  // here.
  for (const auto& [tensor, gradient] : gradients) GRADWIRE_RETURN_IF_ERROR(check_joined(tensor));
  try {
    MutexLock lock(context_->mutex);
    for (auto& [tensor, gradient] : gradients) {
      accumulate(apart_.contains(tensor) ? apart_ : context_->gradients, tensor, std::move(gradient));
    }
  } catch (...) {
    return caught("adding up the gradients of a leaf");
  }
  gradients.clear();
  return absl::OkStatus();
}

// Logs a warning for the first such gradient of the worker only; later ones are counted. A gradient that the
// caller has requested for this very tensor (apart) is correct.
absl::Status KeptGradients::check_joined(const at::Tensor& tensor) {
  // With inputs only requested gradients are kept.
  if (header_.inputs_only()) return absl::OkStatus();
  const std::string* sender = unjoined_sender(tensor);
  if (sender == nullptr || is_apart(tensor)) return absl::OkStatus();
  const bool first = context_->unjoined_gradients->fetch_add(1, std::memory_order_relaxed) == 0;
  if (!first && !header_.require_joined()) return absl::OkStatus();
  const std::string what = absl::StrCat("backward in the autograd context ", rpc::to_string(context_->id),
                                        ": got a gradient for a tensor of shape ", c10::str(tensor.sizes()),
                                        " that worker \"", *sender,
                                        "\" sent outside every context, expected a result of a call in this "
                                        "context; the gradient stays on this worker: open the Context before "
                                        "the call that returned the tensor, or use tensor.detach() if the "
                                        "gradient is wanted here");
  if (header_.require_joined()) return absl::FailedPreconditionError(what);
  log(LogLevel::kWarning, what,
      " (reported once for each agent; BackwardOptions::require_joined makes this an error)");
  return absl::OkStatus();
}

bool KeptGradients::is_apart(const at::Tensor& tensor) {
  MutexLock lock(context_->mutex);
  return apart_.contains(tensor);
}

}  // namespace gradwire::autograd
