#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <list>
#include <memory>
#include <vector>

#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/hooks/comm_hook.h"

namespace gradwire::data_parallel {

// Starts the average of `tensor` over the group, in place. Divides before it sums, so that the sum of float16
// values does not overflow.
HookStep mean_of(collectives::ProcessGroup& group, at::Tensor tensor);

// Starts the average of a sparse gradient: a COO tensor of the same shape and dtype on every rank, with any
// number of entries. The step's result is the sum of all ranks' tensors divided by `divisor`, coalesced. The
// gradient does not change. Throws the errors of ProcessGroup::all_reduce for sparse tensors.
HookStep average_sparse(collectives::ProcessGroup& group, const at::Tensor& gradient, int divisor);

// The reductions of one pass: those of its buckets, with the hook if there is one, and others that end with
// the pass. Not thread-safe; the methods may be called on different threads one after the other.
class BucketReductions {
 public:
  explicit BucketReductions(std::shared_ptr<collectives::ProcessGroup> group)
      : group_(std::move(group)), divisor_(group_->size()) {}

  // Without a hook (nullptr) the gradients are averaged.
  void set_hook(std::shared_ptr<CommHook> hook) { hook_ = std::move(hook); }
  const std::shared_ptr<CommHook>& hook() const { return hook_; }
  // Without a hook the sum of the gradients is divided by this number; the group's size at first. All ranks
  // must set the same number.
  void set_divisor(int divisor) { divisor_ = divisor; }

  // Starts the reduction of a bucket's gradients. Its values are in bucket.buffer() after finish().
  void start(GradBucket bucket);
  // Starts the average of a sparse gradient. `result` gets the average in finish(); it must live until then.
  void start_sparse(const at::Tensor& gradient, at::Tensor& result);
  // Waits for another operation of this pass in finish().
  void add(std::shared_ptr<collectives::Work> work) { others_.push_back(std::move(work)); }

  // Waits until all reductions have ended. Throws the first error; then the reductions are dropped.
  void finish();

 private:
  struct Reduction {
    GradBucket bucket;
    // Receives the result: the buffer that the bucket had first, or nullptr.
    at::Tensor target;
    at::Tensor* sparse_result;
    HookStep step;
  };

  HookStep average(const at::Tensor& flat);
  // Runs the steps on the host whose operations have ended and that start no collectives.
  void advance_locally();
  static void take_result(Reduction& reduction);

  const std::shared_ptr<collectives::ProcessGroup> group_;
  std::shared_ptr<CommHook> hook_;
  int divisor_;
  // Steps may refer to their bucket, so its address must not change.
  std::list<Reduction> reductions_;
  std::vector<std::shared_ptr<collectives::Work>> others_;
};

}  // namespace gradwire::data_parallel
