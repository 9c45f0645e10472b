#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <string>
#include <utility>

#include "gradwire/codec/id.h"
#include "gradwire/rpc/call_context.h"

namespace gradwire::autograd {

// The node of a sent message: its edges lead to the nodes that computed the tensors of the message, and the
// gradients that the receiver ships enter the graph here. Only the context owns it, under the number of the
// message: planting a send node changes no tensor.
class SendNode : public torch::autograd::Node {
 public:
  // `may_continue`: false if it is known that no gradient of the message reaches a tensor that this worker
  // received. `answered`: the call whose answer the message is, if it is one.
  SendNode(const rpc::Id& context, uint64_t message, uint64_t receiver, torch::autograd::edge_list edges,
           bool may_continue = true, const rpc::CallIdentity& answered = {})
      : Node(std::move(edges)),
        context_(context),
        message_(message),
        receiver_(receiver),
        may_continue_(may_continue),
        answered_(answered) {}

  const rpc::Id& context() const { return context_; }
  uint64_t message() const { return message_; }
  // The incarnation of the worker that the message went to.
  uint64_t receiver() const { return receiver_; }
  bool may_continue() const { return may_continue_; }
  const rpc::CallIdentity& answered() const { return answered_; }

  std::string name() const override { return "GradwireSend"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }

 private:
  const rpc::Id context_;
  const uint64_t message_;
  const uint64_t receiver_;
  const bool may_continue_;
  const rpc::CallIdentity answered_;
};

}  // namespace gradwire::autograd
