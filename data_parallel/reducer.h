#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/base/mutex.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/gradient_buckets.h"
#include "gradwire/data_parallel/gradient_sink.h"
#include "gradwire/data_parallel/named_tensor.h"
#include "gradwire/data_parallel/ready_state.h"

namespace gradwire::collectives {

// The arguments of a Reducer.
struct ReducerOptions {
  std::shared_ptr<ProcessGroup> group;
  BucketCaps caps;
  bool find_unused_parameters = false;
  bool broadcast_buffers = true;
};

// The implementation of DistributedDataParallel without its template. Averages the gradients of replicated
// parameters over the ranks of a group, while the backward pass still runs.
//
// Buckets: several parameters share a bucket. When a bucket's last gradient has been accumulated, its
// all_reduce starts; all ranks start the buckets in the same order. The pass ends when all buckets are
// reduced. During the first pass the buckets follow the reverse order of the list of parameters. Afterwards
// they follow the order in which the gradients were ready on rank 0; `.grad` moves to the new buckets then.
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
class Reducer {
 public:
  // All ranks must call it. Copies rank 0's values to all parameters and buffers. Parameters that do not
  // require grad take no part afterwards. Throws Error: InvalidArgument if no parameter requires grad, or if
  // the ranks' lists differ (the message names the rank and the parameter); the group's errors.
  Reducer(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers, ReducerOptions options);
  ~Reducer();

  // Called before each forward. With grad mode on, in training, and outside begin_no_sync(), it may
  // communicate, and all ranks must call it: it arranges the buckets after the first pass, and broadcasts the
  // buffers. Throws Error: FailedPrecondition if the last pass has not ended (the message names the
  // parameters without a gradient); Aborted after a reduction has failed; the group's errors.
  void before_forward(bool training);
  // Called with the tensors that forward returned. In passes that libtorch's engine does not run, the unused
  // parameters are those that these tensors do not depend on.
  void after_forward(const std::vector<at::Tensor>& outputs);

  // Passes between these two calls accumulate gradients on this rank only. Pairs of calls may be nested.
  void begin_no_sync();
  void end_no_sync();

  // The names of each bucket's parameters.
  std::vector<std::vector<std::string>> bucket_names() const;
  // Number of buckets whose reduction the pass under way has started.
  std::size_t started_reductions() const;

 private:
  using Node = torch::autograd::Node;
  class PostHook;
  class PreHook;

  struct Parameter {
    // The node that accumulates the gradient. Kept alive here, because the parameter has only a weak
    // reference to it.
    std::shared_ptr<Node> accumulator;
    // Whether a pass without reduction has accumulated a gradient since the last reduction.
    bool used_locally = false;
    // Whether the parameter gets no gradient in the pass under way.
    bool unused = false;
    // The gradient of an unused parameter before the pass; it is restored if no rank has used the parameter.
    at::Tensor saved;
  };

  // Compares the list with the other ranks', and broadcasts the values of rank 0.
  void check_and_broadcast(const std::vector<NamedTensor>& parameters);
  // After the first pass, arranges the buckets in rank 0's order.
  void rebuild_buckets();

  // The following methods are in reducer_pass.cc. `in_sink`: the pass's gradients go to a GradientSink.
  // Called by PostHook, in passes of libtorch's engine.
  void on_accumulated(std::size_t index);
  // Called by PreHook; in passes of libtorch's engine it returns the gradients unchanged.
  torch::autograd::variable_list before_accumulation(std::size_t index,
                                                     const torch::autograd::variable_list& gradients);
  void begin_pass_locked(bool in_sink) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For each parameter, whether the pass will compute a gradient for it.
  std::vector<bool> reached_locked(bool in_sink) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Marks the parameters that the pass does not reach, and starts the reduction of which parameters are used.
  void mark_unused_locked(bool in_sink) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Marks a parameter whose gradient is ready. Throws Error with FailedPrecondition if it was already marked.
  void mark_locked(std::size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void start_reductions_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Throws the error of the first reduction that has failed; later passes then throw Aborted.
  void wait_for_reductions();
  // For each parameter, whether any rank has used it. Called when all reductions have ended.
  std::vector<bool> used_anywhere() const;
  // End a pass: wait for the reductions, and set `.grad` or the gradients in the sink.
  void finish_pass();
  void finish_in_sink(GradientSink& sink);
  void end_pass_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void check_usable_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ReducerOptions options_;
  std::vector<at::Tensor> buffers_;

  // Used between passes by the thread that calls forward, and during a pass by the hooks.
  GradientBuckets buckets_;
  std::vector<Parameter> parameters_;
  // For each parameter, 1 if a rank has used it; the first reduction of a pass with find_unused_parameters.
  at::Tensor used_;

  mutable Mutex mutex_;
  ReadyState state_ ABSL_GUARDED_BY(mutex_);
  int no_sync_ ABSL_GUARDED_BY(mutex_) = 0;
  // The error of the first reduction that has failed.
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Work>> reductions_ ABSL_GUARDED_BY(mutex_);
  // The gradients in the sink before the pass.
  std::vector<at::Tensor> before_ ABSL_GUARDED_BY(mutex_);
  // The nodes of forward's outputs whose graphs may still be alive.
  std::vector<std::weak_ptr<Node>> outputs_ ABSL_GUARDED_BY(mutex_);
  // The order in which the gradients were ready in the first pass. nullopt before that pass, and after the
  // buckets have been arranged.
  std::optional<std::vector<std::size_t>> first_order_ ABSL_GUARDED_BY(mutex_);
  // Whether the first pass has ended.
  bool has_order_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::collectives
