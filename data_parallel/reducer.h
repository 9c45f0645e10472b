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

struct ReducerOptions {
  std::shared_ptr<ProcessGroup> group;
  BucketCaps caps;
  bool find_unused_parameters = false;
  bool broadcast_buffers = true;
};

// What DistributedDataParallel does under its template: averages the gradients of replicated parameters over
// the ranks of a group while the backward pass still runs.
//
// Parameters share buckets. When a bucket's last gradient has been accumulated its all_reduce starts; buckets
// start in one order on all ranks. `.grad` is a view into the bucket: a gradient that was there before the
// pass (zero_grad(false)) is accumulated and reduced in place, and one that was not (the default) is copied
// into the bucket once. The pass ends when all buckets are reduced. First the buckets follow the reverse
// order of the list, after the first pass the order in which the gradients came on rank 0; `.grad` moves to
// the new buckets then.
//
// A pass that libtorch's engine does not run (GradientSink) leaves `.grad` alone; its gradients are averaged
// into the sink. Every contribution counts: what had been accumulated without a reduction, in `.grad` or in
// the sink, is part of the sum.
//
// One pass at a time. Hooks may be called on any thread; everything else on one. Holds the parameters; the
// hooks on them live as long as this.
class Reducer {
 public:
  // Entered by all ranks. Parameters that do not require grad and buffers are only given rank 0's values.
  // Throws Error: InvalidArgument where no parameter requires grad or the ranks' lists differ (names the rank
  // and the parameter); what the group throws.
  Reducer(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers, ReducerOptions options);
  ~Reducer();

  // Before each forward. With grad mode on, in training and outside begin_no_sync() it may communicate, and
  // is entered by all ranks: new buckets, and the buffers. Throws Error: FailedPrecondition when a pass was
  // not finished, naming the parameters without gradient; Aborted after a reduction has failed; what the
  // group throws.
  void before_forward(bool training);
  // What forward returned: where unused parameters are looked for in passes that libtorch does not run.
  void after_forward(const std::vector<at::Tensor>& outputs);

  // Passes in between, counted, accumulate on this rank alone.
  void begin_no_sync();
  void end_no_sync();

  // The names of each bucket's parameters; how many reductions the pass under way has started.
  std::vector<std::vector<std::string>> bucket_names() const;
  std::size_t started_reductions() const;

 private:
  using Node = torch::autograd::Node;
  class PostHook;
  class PreHook;

  struct Parameter {
    // Kept alive: the parameter itself holds it weakly.
    std::shared_ptr<Node> accumulator;
    // Has taken part in a pass without reduction since the last one with.
    bool used_locally = false;
    // In the pass under way: no gradient will come; what must be there again if no rank has one.
    bool unused = false;
    at::Tensor saved;
  };

  void check_and_broadcast(const std::vector<NamedTensor>& parameters);
  void rebuild_buckets();

  // reducer_pass.cc
  void accumulated(std::size_t index);
  torch::autograd::variable_list before_accumulation(std::size_t index,
                                                     const torch::autograd::variable_list& gradients);
  void begin_pass_locked(bool in_sink) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<bool> reached_locked(bool in_sink) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void leave_out_unused_locked(bool in_sink) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void mark_locked(std::size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void start_reductions_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void wait_for_reductions();
  // Of each parameter, whether any rank used it. Called when all reductions have ended.
  std::vector<bool> used_anywhere() const;
  void finish_pass();
  void finish_in_sink(GradientSink& sink);
  void end_pass_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void check_usable_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ReducerOptions options_;
  std::vector<at::Tensor> buffers_;

  // Between passes they belong to the thread that calls forward; in a pass, to the hooks.
  GradientBuckets buckets_;
  std::vector<Parameter> parameters_;
  at::Tensor used_;

  mutable Mutex mutex_;
  ReadyState state_ ABSL_GUARDED_BY(mutex_);
  int no_sync_ ABSL_GUARDED_BY(mutex_) = 0;
  // Why nothing works any more.
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Work>> reductions_ ABSL_GUARDED_BY(mutex_);
  // What the sink had before the pass.
  std::vector<at::Tensor> before_ ABSL_GUARDED_BY(mutex_);
  // Of forwards whose graphs may still be alive.
  std::vector<std::weak_ptr<Node>> outputs_ ABSL_GUARDED_BY(mutex_);
  // In which the gradients came in the first pass; none before it, and when the buckets follow it already.
  std::optional<std::vector<std::size_t>> first_order_ ABSL_GUARDED_BY(mutex_);
  bool has_order_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::collectives
