#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <string>
#include <utility>

#include "gradwire/codec/id.h"

namespace gradwire::autograd {

// Where tensors of a message left this worker: its edges lead to what they were computed from. The receiver's
// gradients enter here. Held by the context, under the message's number, and by nothing else: planting one
// changes no tensor.
class SendNode : public torch::autograd::Node {
 public:
  // `leads_on`: whether, for all that is known, its gradients go on to what was received here.
  SendNode(const rpc::Id& context, uint64_t message, uint64_t receiver, torch::autograd::edge_list edges,
           bool leads_on = true)
      : Node(std::move(edges)),
        context_(context),
        message_(message),
        receiver_(receiver),
        leads_on_(leads_on) {}

  const rpc::Id& context() const { return context_; }
  uint64_t message() const { return message_; }
  // The incarnation of the worker that the message went to.
  uint64_t receiver() const { return receiver_; }
  bool leads_on() const { return leads_on_; }

  std::string name() const override { return "GradwireSend"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }

 private:
  const rpc::Id context_;
  const uint64_t message_;
  const uint64_t receiver_;
  const bool leads_on_;
};

}  // namespace gradwire::autograd
