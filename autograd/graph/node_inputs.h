#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <cstdint>
#include <optional>

#include "gradwire/autograd/graph/node_task.h"

namespace gradwire::autograd {

// The gradients that have arrived at one node in a pass, added up for each input. On an accelerator the
// additions follow the rules of libtorch's engine: they run on the stream of the node, which waits for the
// streams of the gradients with events. Not thread-safe. The node must outlive this object.
class NodeInputs {
 public:
  NodeInputs() = default;
  explicit NodeInputs(torch::autograd::Node& node);

  // The stream on which libtorch's engine runs the node, if one of its inputs is on an accelerator.
  const std::optional<c10::Stream>& stream() const { return stream_; }
  // Adds a gradient. `ready`: the stream on which it is ready (ready_stream()). Calls no code of a device for
  // a gradient on the CPU. Throws what libtorch throws.
  void add(uint32_t input, at::Tensor gradient, const std::optional<c10::Stream>& ready);
  // Moves the sums, and what the node has to wait for before it uses them, into the task.
  void move_to(NodeTask& task);

 private:
  torch::autograd::Node* node_ = nullptr;
  std::optional<c10::Stream> stream_;
  torch::autograd::InputBuffer buffer_{0};
};

// Returns the stream on which a gradient is ready that the calling thread delivers now; nothing if it has no
// streams. `producer`: the stream of the node that computed it, if the node has one.
std::optional<c10::Stream> ready_stream(const at::Tensor& gradient,
                                        const std::optional<c10::Stream>& producer);

}  // namespace gradwire::autograd
