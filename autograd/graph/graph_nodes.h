#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/autograd/graph/gradient_route.h"
#include "gradwire/codec/device.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/core/worker.h"

namespace gradwire::autograd {

// The node of a received message: the tensors of the message are its outputs, and the gradients that arrive
// at it are shipped to the sender. It is owned by the tensors that are computed from the message. It refers
// to its context by id only, so that neither keeps the other alive.
//
// Its input metadata has the device of each received tensor, and the current stream of the thread that has
// made the tensor an output (set_outputs()). Gradients are shipped from that device; the sender's own device
// may be another one.
class RecvNode : public torch::autograd::Node {
 public:
  // `self`: the incarnation of the worker that received the message. `route`: one for each output, or empty
  // if the sender did not send them. `sender_devices`: the same for the devices of the sender's tensors.
  RecvNode(const rpc::Id& context, uint64_t self, rpc::Worker sender, uint64_t message,
           std::vector<GradientRoute> route = {}, std::vector<rpc::Device> sender_devices = {})
      : context_(context),
        self_(self),
        sender_(std::move(sender)),
        message_(message),
        route_(std::move(route)),
        sender_devices_(std::move(sender_devices)) {}

  const rpc::Id& context() const { return context_; }
  uint64_t self() const { return self_; }
  const rpc::Worker& sender() const { return sender_; }
  uint64_t message() const { return message_; }
  // Returns the sent tensors that the gradient of this output will reach from the sender on; nullptr if the
  // sender did not send the route.
  const GradientRoute* route(uint32_t output) const {
    return output < route_.size() ? &route_[output] : nullptr;
  }
  // Returns the device at the sender that the tensor of this output came from, and that its gradient has to
  // go back to; the CPU if the sender did not send it.
  rpc::Device sender_device(uint32_t output) const {
    return output < sender_devices_.size() ? sender_devices_[output] : rpc::Device();
  }

  std::string name() const override { return "GradwireRecv"; }
  // Throws Error, FailedPrecondition. Only libtorch's own backward() calls it: LocalExecutor ships the
  // gradients and does not apply the node.
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

 private:
  const rpc::Id context_;
  const uint64_t self_;
  const rpc::Worker sender_;
  const uint64_t message_;
  const std::vector<GradientRoute> route_;
  const std::vector<rpc::Device> sender_devices_;
};

// Makes each of `tensors` an output of `node`: fresh tensors that share the received memory. On an
// accelerator the tensors must be ready on the current streams of the calling thread.
void set_outputs(const std::shared_ptr<RecvNode>& node, std::vector<at::Tensor*> tensors);

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
