#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "gradwire/codec/tensor_set.h"

namespace gradwire::rpc {

// The tensors of one message. Not thread-safe.
struct TorchTensors : TensorSet {
  std::vector<at::Tensor> tensors;
  // For each tensor, whether the caller moved it in. Then memory that libtorch did not allocate is given away
  // too.
  absl::InlinedVector<bool, 8> given_away;

  std::size_t size() const override { return tensors.size(); }
  // Returns the index of the tensor.
  std::size_t add(at::Tensor tensor, bool give_away) {
    tensors.push_back(std::move(tensor));
    given_away.push_back(give_away);
    return tensors.size() - 1;
  }
};

}  // namespace gradwire::rpc
