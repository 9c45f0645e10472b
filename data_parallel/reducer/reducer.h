#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/arrangement/bucket_arrangement.h"
#include "gradwire/data_parallel/buckets/gradient_buckets.h"
#include "gradwire/data_parallel/buckets/named_tensor.h"
#include "gradwire/data_parallel/hooks/bucket_reductions.h"
#include "gradwire/data_parallel/join/join_status.h"
#include "gradwire/data_parallel/passes/accumulation_hooks.h"
#include "gradwire/data_parallel/passes/backward_end.h"
#include "gradwire/data_parallel/passes/delayed_reduction.h"
#include "gradwire/data_parallel/passes/low_precision.h"
#include "gradwire/data_parallel/passes/static_graph.h"
#include "gradwire/data_parallel/passes/unused_parameters.h"
#include "gradwire/data_parallel/reducer/gradient_sink.h"
#include "gradwire/data_parallel/reducer/ready_state.h"

namespace gradwire::data_parallel {

// The arguments of a Reducer.
struct ReducerOptions {
  std::shared_ptr<collectives::ProcessGroup> group;
  BucketCaps caps;
  // Whether the first passes try other sizes than caps.others (BucketArrangement).
  bool tune_caps = false;
  // Measures the passes.
  const Clock* clock = &Clock::system();
  bool find_unused_parameters = false;
  bool broadcast_buffers = true;
  bool static_graph = false;
  // Parameters whose gradients are averaged after all buckets (DelayedReduction). They are in no bucket.
  std::vector<NamedTensor> delayed;
  // The dtypes in which float32 parameters compute, and in which their gradients are reduced.
  std::optional<at::ScalarType> compute_dtype;
  std::optional<at::ScalarType> reduce_dtype;
};

// The implementation of DistributedDataParallel without its template. Averages the gradients of replicated
// parameters over the ranks of a group, while the backward pass still runs.
//
// Buckets: several parameters share a bucket. When a bucket's last gradient has been accumulated, its
// reduction starts; all ranks start the buckets in the same order. The pass ends when all buckets are
// reduced. BucketArrangement changes the buckets between the first passes; `.grad` moves along.
//
// `.grad` is a view into the bucket. If it exists before the pass (zero_grad(false)), the gradient is
// accumulated and reduced in place. If it does not (the default), the gradient is copied into the bucket
// once.
//
// A pass that libtorch's engine does not run (GradientSink) does not change `.grad`; its gradients are
// averaged into the sink. Gradients that were accumulated before without a reduction, in `.grad` or in the
// sink, are part of the average.
//
// One pass runs at a time. The hooks may be called on any thread; all other methods on one thread. Owns
// references to the parameters. The destructor removes its hooks from them.
class Reducer : private AccumulationListener {
 public:
  // All ranks must call it. Copies rank 0's values to all parameters and buffers. Parameters that do not
  // require grad take no part afterwards. Throws Error: InvalidArgument if no parameter requires grad, or if
  // the ranks' lists differ (the message names the rank and the parameter); the group's errors.
  Reducer(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers, ReducerOptions options);

  // Replaces the average. Throws Error with FailedPrecondition if there is a hook already.
  void set_comm_hook(std::shared_ptr<CommHook> hook);

  // Called before each forward. With grad mode on, in training, and outside begin_no_sync(), it may
  // communicate, and all ranks must call it: it arranges the buckets after the first pass, and broadcasts the
  // buffers. Throws Error: FailedPrecondition if the last pass has not ended (the message names the
  // parameters without a gradient); Aborted after a reduction has failed; the group's errors.
  //
  // With mixed_precision the parameters have the low precision afterwards. If they did not have it before,
  // the end of the scope restores them, unless after_forward() keeps the low precision for a backward pass.
  LowPrecisionScope before_forward(bool training);
  // Called with the result of before_forward() and the tensors that forward returned. In passes that
  // libtorch's engine does not run, the unused parameters are those that these tensors do not depend on.
  void after_forward(LowPrecisionScope& scope, const std::vector<at::Tensor>& outputs);

  // Passes between these two calls accumulate gradients on this rank only. Pairs of calls may be nested.
  void begin_no_sync();
  void end_no_sync();

  // Uneven inputs: before each forward in training the reducer asks `notifier` for the state of the ranks
  // (nullptr: all have data). It must stay valid until the next call.
  void set_join(JoinNotifier* notifier) { join_ = notifier; }
  // Takes part in the collectives of one forward and backward pass of the other ranks, with zeros as
  // gradients. `.grad` then holds the same averages as on the other ranks.
  void shadow_pass(const JoinStatus& status);
  // Copies the parameters and buffers of this rank of the group to all ranks.
  void broadcast_from(int rank);

  const std::shared_ptr<collectives::ProcessGroup>& group() const { return options_.group; }
  // The names of each bucket's parameters.
  std::vector<std::vector<std::string>> bucket_names() const;
  // Number of buckets whose reduction the pass under way has started.
  std::size_t started_reductions() const;

 private:
  using Node = torch::autograd::Node;

  // The part of before_forward that all ranks run together; shadow_pass() runs it too.
  void synchronize(const JoinStatus& status);
  void check_usable_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- Called in a backward pass. `in_sink`: the pass's gradients go to a GradientSink.
  void on_accumulated(std::size_t index) override;
  // In passes of libtorch's engine it returns the gradients unchanged.
  torch::autograd::variable_list before_accumulation(
      std::size_t index, const torch::autograd::variable_list& gradients) override;
  // Whether a hook on forward's outputs ends the pass, and not the last bucket.
  bool ends_with_outputs() const { return static_graph_.has_value() || low_precision_ != nullptr; }
  // Called at the end of a pass of libtorch's engine, if ends_with_outputs().
  void end_of_backward();
  void begin_pass_locked(bool in_sink) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Contributes what this rank has for the parameters that the pass does not reach, and marks them.
  void mark_unused_locked(bool in_sink, const std::vector<bool>& reached)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Marks a parameter whose gradient is ready. Throws Error with FailedPrecondition if it was already marked.
  void mark_locked(std::size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts the reductions of complete buckets. Returns whether it has started the last one of the pass.
  bool start_reductions();
  // Ends a pass: waits for the reductions, and sets `.grad`, or the gradients in the sink if there is one.
  // `zeros`: this rank contributes zeros.
  void finish_pass(GradientSink* sink = nullptr, bool zeros = false);
  // The part of finish_pass() that may fail.
  void take_averages(GradientSink* sink, bool zeros);
  // Called in a catch block: a part of the pass has thrown. Throws the error for the caller of backward().
  [[noreturn]] void fail_pass();

  const ReducerOptions options_;
  // The tensors that broadcast_from() copies: parameters and buffers; and the buffers alone.
  std::vector<at::Tensor> replicated_;
  std::vector<at::Tensor> buffers_;
  JoinNotifier* join_ = nullptr;

  // Used between passes by the thread that calls forward, and during a pass by the hooks.
  GradientBuckets buckets_;
  BucketArrangement arrangement_;
  UnusedParameters unused_;
  std::optional<DelayedReduction> delayed_;
  std::shared_ptr<LowPrecision> low_precision_;  // nullptr: all compute in their own dtype.
  int divisor_;

  mutable Mutex mutex_;
  ReadyState state_ ABSL_GUARDED_BY(mutex_);
  std::optional<StaticGraph> static_graph_;  // Set once; its state is guarded by `mutex_`.
  int no_sync_ ABSL_GUARDED_BY(mutex_) = 0;
  // Whether a thread starts reductions. That thread uses `reductions_` without the lock, because a hook of
  // the user runs then.
  bool launching_ ABSL_GUARDED_BY(mutex_) = false;
  // Whether the thread that starts the reductions must first start the exchange of `unused_`.
  bool exchanges_unused_ ABSL_GUARDED_BY(mutex_) = false;
  BucketReductions reductions_;
  // The error of the first pass that has failed.
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  // The gradients in the sink before the pass.
  std::vector<at::Tensor> before_ ABSL_GUARDED_BY(mutex_);
  // The nodes of forward's outputs whose graphs may still be alive.
  std::vector<std::weak_ptr<Node>> outputs_ ABSL_GUARDED_BY(mutex_);

  BackwardEnd backward_end_;
  // The last member: its hooks use the others.
  AccumulationHooks hooks_;
};

}  // namespace gradwire::data_parallel
