#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/autograd/context.h"
#include "gradwire/autograd/graph/gradients.h"
#include "gradwire/rpc/rref.h"

namespace gradwire::autograd {

// A tensor whose gradient is asked for: one of this worker, or a reference to one that any worker owns.
class Input {
 public:
  Input(at::Tensor tensor) : tensor_(std::move(tensor)) {}                      // NOLINT: implicit by design
  Input(rpc::RRef<at::Tensor> reference) : reference_(std::move(reference)) {}  // NOLINT: likewise

  // Undefined when it is a reference.
  const at::Tensor& tensor() const { return tensor_; }
  // None when it is a tensor of this worker.
  const std::optional<rpc::RRef<at::Tensor>>& reference() const { return reference_; }

 private:
  at::Tensor tensor_;
  std::optional<rpc::RRef<at::Tensor>> reference_;
};

// How a pass finds out which gradients will arrive: the two algorithms of PyTorch's distributed autograd
// design.
enum class BackwardMode {
  // Counts first which gradients will arrive where: a call whose result is not used costs nothing and stops
  // nothing.
  kSmart,
  // Takes every tensor that was sent as used, which saves a round of messages. Where one is not, backward()
  // waits for its gradient until it times out.
  kFast,
};

// Options of one backward pass.
struct BackwardOptions {
  // The graph stays usable for another pass.
  bool retain_graph = false;
  // How the pass finds out which gradients will arrive.
  BackwardMode mode = BackwardMode::kSmart;
  // One for each root, of its shape; none at all where every root has one element.
  std::vector<at::Tensor> grad_roots = {};
  // Leaves or not, here or on any worker: only their gradients are computed, sent and kept, each in the
  // context on its own worker. Empty: those of every leaf. (A node with several outputs computes them all.)
  // With inputs every pass is kSmart, and does the wave.
  std::vector<Input> inputs = {};
  // DeadlineExceeded afterwards. Inside a handler the deadline of its call holds besides.
  absl::Duration timeout = absl::InfiniteDuration();
  // False: contributions to a gradient are added in libtorch's order, which gives the same bits as one
  // process. A contribution that arrives before its turn is held in memory until those before it have
  // arrived.
  // True: contributions are added as they arrive, and none is held. Where three or more contributions to a
  // gradient come from several calls, the last bits of the sum depend on the order of arrival.
  bool sum_as_they_arrive = false;
  // The gradients are joined to the graph, over all workers, so that they can be differentiated in the same
  // context. Keeps the graph as retain_graph does.
  bool create_graph = false;
  // The pass fails with FailedPrecondition if it ends, on any worker, at a tensor that arrived by RPC outside
  // every context: the forward that made the tensor ran before the Context was opened, and its leaves get no
  // gradient. If false, the worker that has the tensor logs a warning once and counts it
  // (autograd/statistics.h). Tensors that are asked for (inputs, grad()) and arguments of calls do not count.
  bool require_joined = false;
};

// Runs the backward pass of `roots` over every worker that the context's messages joined them to, and returns
// when the gradients of all leaves are in the context, each on its leaf's worker; those of an earlier pass
// are added to. `.grad` stays as it is. Hooks and nodes run on this thread where they are of this worker.
//
// In libtorch's anomaly mode (torch::autograd::DetectAnomalyGuard, on the calling worker) an error says where
// in the forward its node was made, if the mode was on there, and gradients that are not a number are errors.
//
// Throws Error: NotFound (the context is unknown here or released), InvalidArgument (a root that does not
// require grad or has more than one element and no grad_root; a grad_root of another shape),
// FailedPrecondition (the graph reaches another context, or with require_joined a tensor from outside),
// DeadlineExceeded, Unavailable (a worker was lost; the error names it), Cancelled, Aborted (the context was
// released); what a node or hook threw anywhere, as Unknown, with its message and worker. After an error the
// pass has ended or is ending everywhere; gradients may be there in part, and the context stays usable.
void backward(const ContextRef& context, const std::vector<at::Tensor>& roots,
              const BackwardOptions& options = {});

// The gradients of `inputs`, tensors of this worker, one for each in order: undefined where the roots do not
// depend on it. The context keeps what it has. Otherwise as backward(); options.inputs must be empty. For a
// gradient penalty:
//   at::Tensor slope = grad(context, {output}, {x}, {.create_graph = true})[0];
//   backward(context, {loss + slope.square().sum()});
std::vector<at::Tensor> grad(const ContextRef& context, const std::vector<at::Tensor>& roots,
                             const std::vector<at::Tensor>& inputs, const BackwardOptions& options = {});

// The gradients of this worker's tensors in the context so far. Throws Error, NotFound, when the context is
// unknown here or released.
Gradients get_gradients(const ContextRef& context);

}  // namespace gradwire::autograd
