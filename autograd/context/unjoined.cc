#include "gradwire/autograd/context/unjoined.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace gradwire::autograd {
namespace {

// The mark of a tensor. It is stored as a post-accumulate-grad hook that does nothing, because this hook is
// the only field in a leaf's autograd metadata that lives as long as the tensor and that libtorch's C++ side
// does not use.
class UnjoinedMark : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit UnjoinedMark(std::string sender) : sender_(std::move(sender)) {}
  void operator()(const torch::autograd::Variable&) override {}

  const std::string& sender() const { return sender_; }

 private:
  const std::string sender_;
};

}  // namespace

void mark_unjoined(const std::string& sender, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.requires_grad() || !tensor.is_leaf()) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::make_unique<UnjoinedMark>(sender));
  }
}

const std::string* unjoined_sender(const at::Tensor& tensor) {
  // post_acc_grad_hooks() must not be called for a tensor without autograd metadata.
  if (!tensor.defined() || torch::autograd::impl::get_autograd_meta(tensor) == nullptr) return nullptr;
  const auto* mark =
      dynamic_cast<const UnjoinedMark*>(torch::autograd::impl::post_acc_grad_hooks(tensor).get());
  return mark == nullptr ? nullptr : &mark->sender();
}

}  // namespace gradwire::autograd
