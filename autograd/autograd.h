#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/time/time.h"
#include "autograd/context.h"
#include "autograd/gradients.h"

namespace gradwire::autograd {

enum class Mode {
  // Counts first which gradients will arrive where: a call whose result is not used costs nothing and stops
  // nothing.
  kSmart,
  // Takes every tensor that was sent as used, which saves a round of messages. Where one is not, backward()
  // waits for
  // its gradient until it times out.
  kFast,
};

struct BackwardOptions {
  // The graph stays usable for another pass.
  bool retain_graph = false;
  Mode mode = Mode::kSmart;
  // One for each root, of its shape; none at all where every root has one element.
  std::vector<at::Tensor> grad_roots = {};
  // Tensors of this worker, leaves or not: only their gradients are kept, and only here. Empty: those of
  // every leaf.
  std::vector<at::Tensor> inputs = {};
  // DeadlineExceeded afterwards. Inside a handler the deadline of its call holds besides.
  absl::Duration timeout = absl::InfiniteDuration();
  // With three or more contributions to a gradient their sum depends on the order in which they arrive, in
  // the last bits; with this it does not, at the price of keeping them all until the last has come.
  bool sum_in_edge_order = false;
};

// Runs the backward pass of `roots` over every worker that the context's messages joined them to, and returns
// when the gradients of all leaves are in the context, each on its leaf's worker; those of an earlier pass
// are added to. `.grad` stays as it is. Hooks and nodes run on this thread where they are of this worker.
//
// Throws Error: NotFound (the context is unknown here or released), InvalidArgument (a root that does not
// require grad or has more than one element and no grad_root; a grad_root of another shape),
// FailedPrecondition (the graph reaches another context), DeadlineExceeded, Unavailable (a worker was lost;
// named), Cancelled, Aborted (the context was released); what a node or hook threw anywhere, as Unknown, with
// its message and worker. After an error the pass has ended or is ending everywhere; gradients may be there
// in part, and the context stays usable.
void backward(const ContextRef& context, const std::vector<at::Tensor>& roots,
              const BackwardOptions& options = {});

// The gradients of this worker's tensors in the context so far. Throws Error, NotFound, when the context is
// unknown here or released.
Gradients get_gradients(const ContextRef& context);

}  // namespace gradwire::autograd
