#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <utility>

#include "gradwire/collectives/process_group.h"

namespace gradwire::data_parallel {

// A base class of modules whose forward and backward have collectives of their own in training.
class OwnCollectives {
 public:
  virtual ~OwnCollectives() = default;
};

// Marks a tensor of a converted module. libtorch's BatchNorm gives the tensor to the operator batch_norm,
// which finds the group there.
struct GroupMark : c10::BackendMeta {
  explicit GroupMark(std::shared_ptr<collectives::ProcessGroup> g) : group(std::move(g)) {}
  const std::shared_ptr<collectives::ProcessGroup> group;
};

// The mark of a tensor; nullptr if it has none.
const GroupMark* mark_of(const at::Tensor& tensor);

// Throws Error with InvalidArgument, with the name of the module, if a module of the tree is in training and
// has collectives of its own.
void refuse_own_collectives(const torch::nn::Module& module);

}  // namespace gradwire::data_parallel
