#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "gradwire/autograd/graph/gradient_route.h"
#include "gradwire/codec/id.h"

namespace gradwire::autograd {

// Finds out, before a tensor is sent, where its gradient will go on to: through the worker's own graph, to
// tensors that were received, and on from there as their senders said. It gives up where that is too much
// work for what it saves: a large graph's backward pass takes longer than the wave of messages that finds out
// the same.
class RouteTracer {
 public:
  RouteTracer(const rpc::Id& context, uint64_t self) : context_(context), self_(self) {}

  // Nothing when it gives up, or when the graph leaves the context.
  std::optional<GradientRoute> from(const torch::autograd::Edge& edge);

 private:
  // The limit for all edges together.
  static constexpr std::size_t kMaxNodes = 256;

  const rpc::Id context_;
  const uint64_t self_;
  std::size_t nodes_ = 0;
};

}  // namespace gradwire::autograd
