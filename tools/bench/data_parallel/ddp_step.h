#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

// One rank of the measurement of training steps with replicas.
namespace gradwire::bench {

// A chain of layers without biases: each weight has the shape [width, width], and follows a ReLU.
struct LayerChain {
  LayerChain(int64_t layers, int64_t width);
  // [batch, width] to a scalar.
  at::Tensor loss(const at::Tensor& x) const;

  std::vector<at::Tensor> weights;
};

// Averages the gradients of a LayerChain over the ranks, as a replica does.
class StepReplica {
 public:
  virtual ~StepReplica() = default;
  // Runs one forward and backward pass; the gradients are averaged afterwards.
  virtual void step(const at::Tensor& x) = 0;
  // Runs one pass whose gradients stay on this rank.
  virtual void step_alone(const at::Tensor& x) = 0;
  // Sums the tensor over the ranks.
  virtual void all_reduce(const at::Tensor& tensor) = 0;
};

// Gradwire's DistributedDataParallel. `port`: of the store, which the parent process hosts.
std::unique_ptr<StepReplica> make_gradwire_replica(int rank, int size, int port, int64_t layers,
                                                   int64_t width);
// The Reducer of torch's DistributedDataParallel with Gloo. Rank 0 hosts the store at `port`.
std::unique_ptr<StepReplica> make_gloo_replica(int rank, int size, int port, int64_t layers, int64_t width);

}  // namespace gradwire::bench
