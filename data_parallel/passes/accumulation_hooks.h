#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace gradwire::data_parallel {

// The interface that is notified about gradients of parameters. The methods may be called on any thread.
class AccumulationListener {
 public:
  virtual ~AccumulationListener() = default;
  // The gradient of parameter `index`, or a part of it, has been added to `.grad`.
  virtual void on_accumulated(std::size_t index) = 0;
  // The gradients are about to be accumulated. Returns the gradients to accumulate instead.
  virtual torch::autograd::variable_list before_accumulation(
      std::size_t index, const torch::autograd::variable_list& gradients) = 0;
};

// Hooks on the nodes that accumulate the gradients of parameters. The destructor removes them. Not
// thread-safe.
class AccumulationHooks {
 public:
  // `listener` must outlive this object.
  AccumulationHooks(AccumulationListener& listener, std::vector<at::Tensor> parameters);
  ~AccumulationHooks() { remove(); }
  AccumulationHooks(const AccumulationHooks&) = delete;
  AccumulationHooks& operator=(const AccumulationHooks&) = delete;

  // Moves the hooks to the parameters' current nodes. A parameter gets a new node when its dtype changes.
  void renew();
  // The node of a parameter.
  const torch::autograd::Node* node(std::size_t i) const { return nodes_[i].get(); }

 private:
  void add();
  void remove();

  AccumulationListener& listener_;
  const std::vector<at::Tensor> parameters_;
  // The nodes are kept alive here, because a parameter has only a weak reference to its node.
  std::vector<std::shared_ptr<torch::autograd::Node>> nodes_;
};

// The nodes that a backward pass from these nodes can reach; null pointers and expired ones are left out.
std::vector<const torch::autograd::Node*> reachable_nodes(
    const std::vector<std::weak_ptr<torch::autograd::Node>>& from);

}  // namespace gradwire::data_parallel
