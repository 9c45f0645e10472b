#include "gradwire/autograd/graph/node_inputs.h"

#include <memory>
#include <utility>

#include "gradwire/device/streams.h"

namespace gradwire::autograd {

using torch::autograd::InputBuffer;
using torch::autograd::variable_list;

// Node::stream() asks for the accelerator of the process, so it is called only if an input is not on the CPU.
NodeInputs::NodeInputs(torch::autograd::Node& node) : node_(&node) {
  for (uint32_t i = 0; i < node.num_inputs(); ++i) {
    if (node.input_metadata(i).device().is_cpu()) continue;
    stream_ = node.stream();
    return;
  }
}

// The buffer makes the stream on which it adds wait for `ready`, and records the memory for that stream. It
// needs its lists of streams and events only if a gradient has streams.
//
// Problem: the buffer adds in place if no other tensor of the host uses the memory. Nodes may share a
// gradient, and those that have run on the host need not have read it on their streams, so an addition in
// place on another stream would change what they read. libtorch's engine has this race. Here a second
// reference to both summands makes the buffer put the sum into new memory. The sum has the same bits.
void NodeInputs::add(uint32_t input, at::Tensor gradient, const std::optional<c10::Stream>& ready) {
  if (!gradient.defined()) return;
  const std::size_t inputs = node_->num_inputs();
  if (buffer_.buffer.empty()) buffer_ = InputBuffer(variable_list(inputs));
  if (ready && buffer_.ready_streams.empty()) {
    buffer_.opt_accum_streams.resize(inputs);
    buffer_.ready_events.resize(inputs);
    buffer_.ready_streams.resize(inputs);
  }
  const at::Tensor not_in_place[] = {ready ? buffer_.buffer[input] : at::Tensor(),
                                     ready ? gradient : at::Tensor()};
  buffer_.add(input, std::move(gradient), ready, stream_, node_);
}

void NodeInputs::move_to(NodeTask& task) {
  if (stream_ || !buffer_.ready_streams.empty()) {
    task.streams = std::make_unique<TaskStreams>(
        TaskStreams{stream_, std::move(buffer_.ready_streams), std::move(buffer_.ready_events)});
  }
  if (buffer_.buffer.empty()) {
    task.inputs.resize(node_->num_inputs());
  } else {
    task.inputs = std::move(buffer_.buffer);
    buffer_ = InputBuffer(0);
  }
}

// A node has its outputs ready on its own stream, also those on other devices (libtorch's "stream sync
// contract"). A gradient from outside, or of a node that has no stream because its inputs are on the CPU, is
// ready on the current stream of this thread. The stream must be determined when the gradient is delivered: a
// gradient that is held may be added by another thread.
std::optional<c10::Stream> ready_stream(const at::Tensor& gradient,
                                        const std::optional<c10::Stream>& producer) {
  if (!device::has_streams(gradient)) return std::nullopt;
  return producer ? producer : device::current_stream(gradient.device());
}

}  // namespace gradwire::autograd
