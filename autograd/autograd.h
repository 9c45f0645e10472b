#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/autograd/graph/gradients.h"
#include "gradwire/autograd/pass/context.h"
#include "gradwire/rpc/calls/rref.h"

namespace gradwire::autograd {

// A tensor whose gradient is requested: a tensor of this worker, or a reference to a tensor of any worker.
class Input {
 public:
  Input(at::Tensor tensor) : tensor_(std::move(tensor)) {}                      // NOLINT: implicit by design
  Input(rpc::RRef<at::Tensor> reference) : reference_(std::move(reference)) {}  // NOLINT: likewise

  // Undefined if this input is a reference.
  const at::Tensor& tensor() const { return tensor_; }
  // Empty if this input is a tensor of this worker.
  const std::optional<rpc::RRef<at::Tensor>>& reference() const { return reference_; }

 private:
  at::Tensor tensor_;
  std::optional<rpc::RRef<at::Tensor>> reference_;
};

// How a pass finds out which gradients will arrive: the two algorithms of PyTorch's distributed autograd
// design.
enum class BackwardMode {
  // First determines which gradients will arrive at which worker. A call whose result is not used then costs
  // nothing and does not delay the pass.
  kSmart,
  // Assumes that every tensor that was sent is used, which saves a round of messages. If a tensor is not
  // used,
  // backward() waits for its gradient until the timeout.
  kFast,
};

// Options of one backward pass.
struct BackwardOptions {
  // The graph stays usable for another pass.
  bool retain_graph = false;
  // How the pass finds out which gradients will arrive.
  BackwardMode mode = BackwardMode::kSmart;
  // The gradient of each root, with the shape of the root. May be empty if every root has one element.
  std::vector<at::Tensor> grad_roots = {};
  // If not empty, only the gradients of these tensors are computed, sent and kept. The tensors may be leaves
  // or not, on any worker; each gradient is kept in the context on the worker of its tensor. If empty, the
  // gradients of all leaves are computed. (A node with several inputs computes the gradients of all of them.)
  // A pass with inputs is always kSmart and always runs the marking wave.
  std::vector<Input> inputs = {};
  // Limit for the pass; backward() then fails with DeadlineExceeded. Inside a handler the deadline of its
  // call also applies.
  absl::Duration timeout = absl::InfiniteDuration();
  // False: contributions to a gradient are added in libtorch's order, which gives the same bits as one
  // process. A contribution that arrives before its turn is held in memory until those before it have
  // arrived.
  // True: contributions are added as they arrive, and none is held. Where three or more contributions to a
  // gradient come from several calls, the last bits of the sum depend on the order of arrival.
  bool sum_as_they_arrive = false;
  // Records the pass in the graph, on all workers, so that the gradients can be differentiated in the same
  // context. Implies retain_graph.
  bool create_graph = false;
  // The pass fails with FailedPrecondition if it ends, on any worker, at a tensor that arrived by RPC outside
  // every context: the forward that made the tensor ran before the Context was opened, and its leaves get no
  // gradient. If false, the worker that has the tensor logs a warning once and counts it
  // (autograd/statistics.h). Requested tensors (inputs, grad()) and arguments of calls are not checked.
  bool require_joined = false;
};

// Runs the backward pass of `roots` on every worker that messages of the context joined to their graph.
// Returns when the gradients of all leaves are in the context, each on its leaf's worker; they are added to
// the gradients of earlier passes. `.grad` does not change. Hooks and nodes of this worker run on this
// thread.
//
// In libtorch's anomaly mode (torch::autograd::DetectAnomalyGuard, on the calling worker) an error says where
// in the forward its node was made, if the mode was also on there, and gradients that are NaN are errors.
//
// Throws Error: NotFound (the context is unknown here or released), InvalidArgument (a root that does not
// require grad, or that has more than one element and no grad_root; a grad_root of another shape),
// FailedPrecondition (the graph reaches another context, or with require_joined a tensor from outside),
// DeadlineExceeded, Unavailable (a worker was lost; the error names it), Cancelled, Aborted (the context was
// released), Unknown (a node or hook threw on any worker; the error has its message and names the worker).
// After an error the pass has ended or is ending on every worker. Some gradients may be in the context, and
// the context stays usable.
void backward(const ContextRef& context, const std::vector<at::Tensor>& roots,
              const BackwardOptions& options = {});

// Returns the gradient of each of `inputs`, which are tensors of this worker, in order. A gradient is
// undefined if the roots do not depend on its input. The gradients in the context do not change. Otherwise
// the same as backward(); options.inputs must be empty. Example, a gradient penalty:
//   at::Tensor slope = grad(context, {output}, {x}, {.create_graph = true})[0];
//   backward(context, {loss + slope.square().sum()});
std::vector<at::Tensor> grad(const ContextRef& context, const std::vector<at::Tensor>& roots,
                             const std::vector<at::Tensor>& inputs, const BackwardOptions& options = {});

// Returns the gradients of this worker's tensors that are in the context now. Throws Error, NotFound, if the
// context is unknown here or released.
Gradients get_gradients(const ContextRef& context);

}  // namespace gradwire::autograd
