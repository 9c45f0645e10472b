#include "gradwire/autograd/graph/anomaly.h"

#include <ATen/ops/any.h>
#include <ATen/ops/isnan.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::autograd {
namespace {

// libtorch gives the stack as a warning, and in no other way.
class Collector : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { text_ += warning.msg(); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

absl::Status with_forward_stack(torch::autograd::Node& node, absl::Status status) {
  Collector collector;
  {
    c10::WarningUtils::WarningHandlerGuard guard(&collector);
    node.metadata()->print_stack(node.name());
  }
  return absl::Status(status.code(), absl::StrCat(status.message(), "; ", collector.text()));
}

void refuse_nan(const torch::autograd::variable_list& gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const at::Tensor values = gradients[i].is_sparse() ? gradients[i]._values() : gradients[i];
    if (at::any(at::isnan(values.detach())).item<bool>()) {
      throw std::runtime_error(absl::StrCat("it returned nan values in its output ", i));
    }
  }
}

}  // namespace gradwire::autograd
