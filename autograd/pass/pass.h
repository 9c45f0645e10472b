#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/autograd/pass/kept_gradients.h"
#include "gradwire/autograd/pass/marking.h"
#include "gradwire/autograd/pass/pass_part.h"

namespace gradwire::autograd {

// One worker's part in one backward pass: marks the tensors whose gradients will arrive (Wave, KnownMarks),
// then runs the nodes and ships gradients. Thread-safe. Owned by shared_ptr; the context holds one.
//
// Nodes and hooks are user code. They run one at a time and without a lock: at the root on the thread that
// calls run_roots() and wait_for_end(), on other workers on a thread that calls run().
class Pass {
 public:
  Pass(PassCalls::Options calls, std::shared_ptr<ContextState> context, PassPart::Ended ended);

  const rpc::Id& id() const { return part_->calls().id(); }
  // Serves the messages of the wave.
  Wave& wave() { return wave_; }
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
  Wave wave_;
  KnownMarks known_;
  KeptGradients gradients_;
};

}  // namespace gradwire::autograd
