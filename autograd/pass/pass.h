#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/autograd/pass/kept_gradients.h"
#include "gradwire/autograd/pass/marking.h"
#include "gradwire/autograd/pass/pass_part.h"

namespace gradwire::autograd {

// One worker's part in one backward pass: marks what gradients will arrive (Wave, KnownMarks), then runs the
// nodes and ships gradients. Thread-safe; owned by shared_ptr: its context holds it.
//
// Nodes and hooks, user code, run on the thread in run_roots() and wait_for_end(), or elsewhere in run(), one
// at a time and without a lock.
class Pass {
 public:
  Pass(PassCalls::Options calls, std::shared_ptr<ContextState> context, PassPart::Ended ended);

  const rpc::Id& id() const { return part_->calls().id(); }
  // Takes what other workers report of the wave and of an early end.
  Wave& wave() { return wave_; }
  PassPart& part() { return *part_; }
  KeptGradients& gradients() { return gradients_; }

  // Before the pass starts: tensors of this worker whose gradients the root asks for.
  absl::Status add_inputs(const std::vector<at::Tensor>& inputs);
  // A RUN that was not handed over to the thread at the root, where the user's code may run.
  void run(ArrivedRun arrived);
  // A FINISH.
  void finish(const PassReply& reply);

  // ---- At the root.

  // Starts the wave, unless it is known already what it would find, or taken for granted (the fast mode).
  void start(torch::autograd::edge_list roots);
  // Returns when run_roots() may be called, or with the pass's error. Aborts the pass at the deadline.
  absl::Status wait_for_wave(absl::Time deadline);
  // Delivers the gradients of the roots and runs what can be run here. wait_for_end() must follow.
  void run_roots(torch::autograd::variable_list gradients);
  // Returns when every worker has ended its part; runs what arrives meanwhile. Aborts the pass at the
  // deadline.
  absl::Status wait_for_end(absl::Time deadline);

 private:
  const proto::Pass& header() const { return part_->calls().header(); }
  absl::Status deliver(ArrivedRun& arrived, LocalExecutor& graph) const;
  // Delivers gradients in `event`, which came from `from`, then runs the nodes that have all of theirs.
  void deliver_and_run(uint64_t from, PassPart::Event event);
  void ship(const RecvNode& node, torch::autograd::variable_list gradients);
  void abort_late();

  const std::shared_ptr<ContextState> context_;
  const std::shared_ptr<PassPart> part_;
  // The context in which nodes, and the sums of a recorded pass, run.
  const std::shared_ptr<const ActiveContext> active_;
  Wave wave_;
  KnownMarks known_;
  KeptGradients gradients_;
};

}  // namespace gradwire::autograd
