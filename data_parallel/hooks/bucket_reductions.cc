#include "gradwire/data_parallel/hooks/bucket_reductions.h"

#include <ATen/ops/clone.h>
#include <ATen/ops/div.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::data_parallel {

HookStep mean_of(collectives::ProcessGroup& group, at::Tensor tensor) {
  tensor.div_(group.size());
  return HookStep::locally_after({group.all_reduce_async(tensor)}, [tensor] { return HookStep(tensor); });
}

HookStep average_sparse(collectives::ProcessGroup& group, const at::Tensor& gradient, int divisor) {
  const at::Tensor sum = gradient.clone();
  // The group's own average divides before it rounds the values of half and bfloat16.
  if (divisor == group.size()) {
    return HookStep::locally_after({group.all_reduce_async(sum, collectives::ReduceOp::kAvg)},
                                   [sum] { return HookStep(sum); });
  }
  return HookStep::locally_after({group.all_reduce_async(sum)}, [sum, divisor] {
    sum._values().div_(divisor);
    return HookStep(sum);
  });
}

HookStep BucketReductions::average(const at::Tensor& flat) {
  if (divisor_ == group_->size()) {
    return HookStep::locally_after({group_->all_reduce_async(flat, collectives::ReduceOp::kAvg)},
                                   [flat] { return HookStep(flat); });
  }
  return HookStep::locally_after({group_->all_reduce_async(flat)}, [flat, divisor = divisor_] {
    flat.div_(divisor);
    return HookStep(flat);
  });
}

void BucketReductions::start(GradBucket bucket) {
  advance_locally();
  const at::Tensor target = bucket.buffer();
  Reduction& reduction = reductions_.emplace_back(
      Reduction{std::move(bucket), target, /*sparse_result=*/nullptr, HookStep(at::Tensor())});
  reduction.step = hook_ != nullptr ? hook_->run(reduction.bucket) : average(target);
  advance_locally();
}

void BucketReductions::start_sparse(const at::Tensor& gradient, at::Tensor& result) {
  reductions_.emplace_back(Reduction{GradBucket(0, false, at::Tensor(), {}), at::Tensor(), &result,
                                     average_sparse(*group_, gradient, divisor_)});
}

void BucketReductions::take_result(Reduction& reduction) {
  const at::Tensor& result = reduction.step.result();
  if (reduction.sparse_result != nullptr) {
    *reduction.sparse_result = result;
  } else if (!result.is_same(reduction.target)) {
    if (!result.defined() || result.numel() != reduction.target.numel()) {
      throw Error(absl::InvalidArgumentError(absl::StrCat(
          "the result of a communication hook has another size than its bucket: got ",
          result.defined() ? result.numel() : 0, " elements, expected ", reduction.target.numel())));
    }
    reduction.target.copy_(result.view_as(reduction.target));
  }
}

// On an accelerator an operation has "ended" when it is enqueued, and a step would make the current stream,
// in which the backward pass computes, wait for it. The pass would no longer overlap with the reductions. So
// these steps run in finish().
void BucketReductions::advance_locally() {
  for (Reduction& reduction : reductions_) {
    if (reduction.target.defined() && !reduction.target.is_cpu()) continue;
    while (!reduction.step.ended() && reduction.step.can_advance_locally()) {
      reduction.step = std::move(reduction.step).advance();
    }
  }
}

// Each round advances every bucket by one step, in the order of the buckets. So the collectives of later
// steps start in the same order on all ranks, and the operation of one bucket runs while the thread computes
// the next step of another one.
//
// A local step may have run during the pass on one rank, and runs here on another one. A round must not
// depend on that, so the local steps before and after each step are part of its round.
void BucketReductions::finish() {
  try {
    for (const std::shared_ptr<collectives::Work>& work : others_) work->wait();
    bool running = true;
    while (running) {
      running = false;
      for (Reduction& reduction : reductions_) {
        bool stepped = false;
        while (!reduction.step.ended() && (reduction.step.is_local() || !std::exchange(stepped, true))) {
          reduction.step = std::move(reduction.step).advance();
        }
        running = running || !reduction.step.ended();
      }
    }
    for (Reduction& reduction : reductions_) take_result(reduction);
  } catch (...) {
    reductions_.clear();
    others_.clear();
    throw;
  }
  reductions_.clear();
  others_.clear();
}

}  // namespace gradwire::data_parallel
