#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {

// One collective of a coalesced call (collectives/coalescing.h).
struct CoalescedCall {
  // The collective.
  enum class Kind {
    kAllReduce,            // outputs: the tensor.
    kBroadcast,            // outputs: the tensor.
    kAllGather,            // outputs: one tensor for each rank. inputs: the tensor.
    kAllGatherIntoTensor,  // outputs: the whole. inputs: the part.
    kReduceScatter,        // outputs: the tensor. inputs: one tensor for each rank.
    kReduceScatterTensor,  // outputs: the part. inputs: the whole.
    kAllToAll,             // outputs and inputs: one tensor for each rank.
  };
  // The collective to run.
  Kind kind = Kind::kAllReduce;
  // The tensors that are written.
  std::vector<at::Tensor> outputs;
  // The tensors that are only read.
  std::vector<at::Tensor> inputs;
  // The operation of kAllReduce and of the two kinds of reduce_scatter.
  Reduction op = ReduceOp::kSum;
  // The root of kBroadcast, a rank of the world.
  int root = 0;
};

}  // namespace gradwire::collectives
