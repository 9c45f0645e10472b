#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/autograd/graph/gradient_route.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::autograd {

// Where tensors of a message arrived: they are its outputs. Its gradients go to the sender. Held by the
// tensors computed from the message, and knows its context by id alone, so that neither keeps the other
// alive.
class RecvNode : public torch::autograd::Node {
 public:
  // `self`: the incarnation of the worker that received the message. `gradient_route`: one for each output,
  // or none.
  RecvNode(const rpc::Id& context, uint64_t self, rpc::Worker sender, uint64_t message,
           std::vector<GradientRoute> route = {})
      : context_(context),
        self_(self),
        sender_(std::move(sender)),
        message_(message),
        route_(std::move(route)) {}

  const rpc::Id& context() const { return context_; }
  uint64_t self() const { return self_; }
  const rpc::Worker& sender() const { return sender_; }
  uint64_t message() const { return message_; }
  // Where the gradient of this output goes on to from the sender; nullptr when the sender did not say.
  const GradientRoute* route(uint32_t output) const {
    return output < route_.size() ? &route_[output] : nullptr;
  }

  std::string name() const override { return "GradwireRecv"; }
  // The distributed executor ships the gradients and never applies the node; libtorch's own backward() gets
  // here. Throws Error, FailedPrecondition.
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

 private:
  const rpc::Id context_;
  const uint64_t self_;
  const rpc::Worker sender_;
  const uint64_t message_;
  const std::vector<GradientRoute> route_;
};

// Makes each of `tensors` an output of `node`: fresh tensors that share the received memory.
void set_outputs(const std::shared_ptr<RecvNode>& node, std::vector<at::Tensor*> tensors);

}  // namespace gradwire::autograd
