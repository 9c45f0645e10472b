#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "gradwire/autograd/graph/gradient_route.h"
#include "gradwire/codec/id.h"

namespace gradwire::autograd {

// Finds the route of a tensor's gradient before the tensor is sent: the gradient goes through the worker's
// own graph to tensors that were received, and from these along the routes that their senders sent. The
// tracer gives up in a large graph, where its work would cost more than it saves: the backward pass of such a
// graph takes longer than the wave of messages that finds the same information.
class RouteTracer {
 public:
  RouteTracer(const rpc::Id& context, uint64_t self) : context_(context), self_(self) {}

  // Returns the route of a gradient that enters the graph at `edge`; nullopt if the tracer gives up or if the
  // graph leaves the context.
  std::optional<GradientRoute> trace(const torch::autograd::Edge& edge);

 private:
  // Maximum number of nodes for all calls of trace() together.
  static constexpr std::size_t kMaxNodes = 256;

  const rpc::Id context_;
  const uint64_t self_;
  std::size_t nodes_ = 0;
};

}  // namespace gradwire::autograd
