#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

#include "gradwire/rpc/rref.h"

namespace gradwire::autograd {

// A tensor whose gradient is asked for: one of this worker, or a reference to one that any worker owns.
class Input {
 public:
  Input(at::Tensor tensor) : tensor_(std::move(tensor)) {}                      // NOLINT: implicit by design
  Input(rpc::RRef<at::Tensor> reference) : reference_(std::move(reference)) {}  // NOLINT: likewise

  // Undefined when it is a reference.
  const at::Tensor& tensor() const { return tensor_; }
  // None when it is a tensor of this worker.
  const std::optional<rpc::RRef<at::Tensor>>& reference() const { return reference_; }

 private:
  at::Tensor tensor_;
  std::optional<rpc::RRef<at::Tensor>> reference_;
};

}  // namespace gradwire::autograd
