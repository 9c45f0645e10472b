#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/graph/gradients.h"
#include "gradwire/autograd/pass/marking.h"
#include "gradwire/autograd/pass/pass_part.h"
#include "gradwire/proto/autograd.pb.h"

namespace gradwire::autograd {

// Stores the gradients that a pass computes for tensors of one worker: in the context, or apart from it for
// the caller that requested them. Thread-safe.
class KeptGradients {
 public:
  // `header` must outlive this object.
  KeptGradients(std::shared_ptr<ContextState> context, const proto::Pass& header)
      : context_(std::move(context)), header_(header) {}

  // From now on the gradients of these tensors are kept here until take_apart(), and not in the context. Must
  // be called before the pass starts.
  void keep_apart(const std::vector<at::Tensor>& tensors);
  // Returns the gradients that were kept apart, ready on the current streams of the calling thread, and
  // forgets them.
  Gradients take_apart();
  // Adds the gradients of pairs (tensor, gradient), and clears the list. The gradients must be ready on the
  // current streams of the calling thread. FailedPrecondition for a tensor that
  // arrived outside every context, if the root has set require_joined.
  absl::Status keep(std::vector<std::pair<at::Tensor, at::Tensor>>& gradients);

 private:
  // Counts and reports the gradient of a tensor that arrived outside every context.
  absl::Status check_joined(const at::Tensor& tensor);
  bool is_apart(const at::Tensor& tensor);

  const std::shared_ptr<ContextState> context_;
  const proto::Pass& header_;
  // Guarded by the context's mutex. A gradient is undefined until the first contribution arrives.
  Gradients apart_;
};

// One worker's part in one backward pass: marks the tensors whose gradients will arrive (MarkingWalk,
// DirectMarking), then runs the nodes and ships gradients. Thread-safe. Owned by shared_ptr; the context
// holds one.
//
// Nodes and hooks are user code. They run one at a time and without a lock: at the root on the thread that
// calls run_roots() and wait_for_end(), on other workers on a thread that calls run().
class Pass {
 public:
  Pass(PassCalls::Options calls, std::shared_ptr<ContextState> context, PassPart::Ended ended);

  const rpc::Id& id() const { return part_->calls().id(); }
  // Serves the messages of the wave.
  MarkingWalk& wave() { return wave_; }
  // Accepts the other events of the pass, for example an early end.
  PassPart& part() { return *part_; }
  KeptGradients& gradients() { return gradients_; }

  // Adds tensors of this worker whose gradients the root requests. Must be called before the pass starts.
  absl::Status add_inputs(const std::vector<at::Tensor>& inputs);
  // Serves a RUN on the calling thread, on which user code may run.
  void run(ArrivedRun arrived);
  // Serves a FINISH.
  void finish(const PassReply& reply);

  // ---- At the root.

  // Starts the wave. Skips it if its result is known (a planned pass) or assumed (the fast mode).
  void start(torch::autograd::edge_list roots);
  // Returns OK when run_roots() may be called, or the error of the pass. Aborts the pass at the deadline.
  absl::Status wait_for_wave(absl::Time deadline);
  // Delivers the gradients of the roots and runs the nodes that are ready here. wait_for_end() must follow.
  void run_roots(torch::autograd::variable_list gradients);
  // Returns when every worker has ended its part; serves arriving RUNs in the meantime. Aborts the pass at
  // the deadline.
  absl::Status wait_for_end(absl::Time deadline);

 private:
  const proto::Pass& header() const { return part_->calls().header(); }
  absl::Status deliver(ArrivedRun& arrived, LocalExecutor& graph) const;
  // Calls `event`, which delivers gradients of worker `from`; then runs the nodes that are ready.
  void deliver_and_run(uint64_t from, PassPart::Event event);
  void ship(const RecvNode& node, torch::autograd::variable_list gradients);
  // Aborts the pass with DeadlineExceeded.
  void abort_late();

  const std::shared_ptr<ContextState> context_;
  const std::shared_ptr<PassPart> part_;
  // The context that is current while nodes run, and while a recorded pass adds gradients.
  const std::shared_ptr<const ActiveContext> active_;
  MarkingWalk wave_;
  DirectMarking direct_;
  KeptGradients gradients_;
};

}  // namespace gradwire::autograd
