#include "gradwire/autograd/graph/gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/device/streams.h"

namespace gradwire::autograd {
namespace {

// Whether no other tensor uses the memory of `tensor`. A view of a gradient shares its storage.
bool is_ours_alone(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.layout() == at::kStrided && tensor.has_storage() &&
         tensor.storage().use_count() == 1 && tensor.is_non_overlapping_and_dense();
}

// Problem: a gradient that another tensor can see must not be changed in place, but a copy of every gradient
// would be slow. A user can hold such tensors, because get_gradients() returns the map without copying the
// tensors. The cases are:
// 1. With GradMode on, the sum is an expression, so that it can be differentiated.
// 2. The first gradient becomes the sum itself if no other tensor uses its memory and its strides are those
//    that libtorch gives `.grad`. Otherwise the sum is a copy with these strides.
// 3. A further gradient is added in place if no other tensor uses the memory of the sum. Otherwise the sum
//    becomes a new tensor, and the tensor that the user holds keeps its value.
// 4. On an accelerator nothing is added in place: a stream may still have to read the memory, although no
//    tensor uses it any more.
void add_to(at::Tensor& sum, const at::Tensor& variable, at::Tensor gradient) {
  namespace utils = torch::autograd::utils;
  const bool dense = gradient.layout() == at::kStrided;
  if (at::GradMode::is_enabled()) {
    // The gradient itself is part of a graph: it is neither copied nor changed.
    const bool sparse_first = sum.defined() && sum.layout() != at::kStrided && dense;
    sum = !sum.defined() ? std::move(gradient) : sparse_first ? gradient + sum : sum + gradient;
    return;
  }
  if (!sum.defined()) {
    if (!dense || variable.layout() != at::kStrided) {
      sum = gradient.clone();
    } else if (is_ours_alone(gradient) && utils::obeys_layout_contract(gradient, variable)) {
      sum = std::move(gradient);
    } else {
      sum = utils::clone_obey_contract(gradient, variable);
    }
  } else if (gradient.is_cpu() && is_ours_alone(sum)) {
    sum.add_(gradient);
  } else {
    // libtorch implements dense + sparse, but not sparse + dense.
    sum = sum.layout() != at::kStrided && dense ? gradient + sum : sum + gradient;
  }
}

}  // namespace

const at::Tensor* Gradients::find(const at::Tensor& tensor) const {
  auto found = index_.find(tensor.unsafeGetTensorImpl());
  return found == index_.end() ? nullptr : &entries_[found->second].gradient;
}

const at::Tensor& Gradients::at(const at::Tensor& tensor) const {
  if (const at::Tensor* gradient = find(tensor)) return *gradient;
  throw Error(absl::NotFoundError(
      tensor.defined()
          ? absl::StrCat("gradient of a tensor of shape ", c10::str(tensor.sizes()), " not found among the ",
                         entries_.size(),
                         " gradients of this context on this worker: only leaves that the loss was computed "
                         "from have one, each on its own worker")
          : "cannot find the gradient of an undefined tensor"));
}

std::vector<at::Tensor> Gradients::of(const std::vector<at::Tensor>& tensors) const {
  std::vector<at::Tensor> gradients;
  gradients.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor* gradient = find(tensor);
    gradients.push_back(gradient == nullptr ? at::Tensor() : *gradient);
  }
  return gradients;
}

at::Tensor& Gradients::operator[](const at::Tensor& tensor) {
  auto [found, is_new] = index_.try_emplace(tensor.unsafeGetTensorImpl(), entries_.size());
  if (is_new) entries_.push_back({tensor, at::Tensor()});
  return entries_[found->second].gradient;
}

// A reader gets the tensor itself. Its own stream then uses the memory, which is recorded for the allocator.
// A sum is never changed in place on an accelerator, so nothing has to wait for the readers.
void Gradients::make_ready(const Entry& entry) {
  auto found = streams_.find(entry.tensor.unsafeGetTensorImpl());
  if (found == streams_.end()) return;
  device::ready_on_current_stream(entry.gradient, found->second);
}

Gradients Gradients::hand_out() {
  if (!streams_.empty()) {
    for (const Entry& entry : entries_) make_ready(entry);
  }
  Gradients copy;
  copy.entries_ = entries_;
  copy.index_ = index_;
  return copy;
}

std::vector<at::Tensor> Gradients::hand_out(const std::vector<at::Tensor>& tensors) {
  if (!streams_.empty()) {
    for (const at::Tensor& tensor : tensors) {
      auto found = index_.find(tensor.unsafeGetTensorImpl());
      if (found != index_.end()) make_ready(entries_[found->second]);
    }
  }
  return of(tensors);
}

at::Tensor Gradients::replace(const at::Tensor& tensor, at::Tensor gradient) {
  std::swap((*this)[tensor], gradient);
  end_change(tensor);
  return gradient;
}

void Gradients::begin_change(const at::Tensor& tensor) {
  auto found = streams_.find(tensor.unsafeGetTensorImpl());
  if (found == streams_.end()) return;
  device::ready_on_current_stream(*find(tensor), found->second);
}

void Gradients::end_change(const at::Tensor& tensor) {
  const at::Tensor& gradient = *find(tensor);
  if (device::has_streams(gradient)) {
    streams_.insert_or_assign(tensor.unsafeGetTensorImpl(), device::current_stream(gradient.device()));
  } else if (!streams_.empty()) {
    streams_.erase(tensor.unsafeGetTensorImpl());
  }
}

void accumulate(Gradients& gradients, const at::Tensor& variable, at::Tensor gradient) {
  if (!gradient.defined()) return;
  at::Tensor& sum = gradients[variable];
  if (gradient.is_cpu()) return add_to(sum, variable, std::move(gradient));
  gradients.begin_change(variable);
  add_to(sum, variable, std::move(gradient));
  gradients.end_change(variable);
}

}  // namespace gradwire::autograd
