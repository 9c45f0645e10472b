#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace gradwire::data_parallel {

// The gradients that a communication hook reduces in one step. It follows torch.distributed.GradBucket. The
// buckets of a pass are numbered in the order in which their reductions start, which is the same on every
// rank. During the first pass the buckets differ from those of the later passes. Not thread-safe.
class GradBucket {
 public:
  // Gives a parameter its full precision back.
  using Restore = std::function<void(const at::Tensor& parameter)>;

  // Called by DistributedDataParallel. `parameters` are in the order of their gradients in `buffer`.
  // `restore`: nullptr if the parameters have their full precision.
  GradBucket(std::size_t index, bool is_last, at::Tensor buffer, std::vector<at::Tensor> parameters,
             Restore restore = nullptr);

  // The bucket's number, from 0. With sparse gradients some numbers are left out: hooks do not get them.
  std::size_t index() const { return index_; }
  // Whether the hook gets no bucket after this one in the pass.
  bool is_last() const { return is_last_; }
  // The gradients of this rank one after the other: one tensor with one dimension.
  const at::Tensor& buffer() const { return buffer_; }
  // Replaces the buffer, for example with one of another dtype. Throws Error with InvalidArgument for a
  // tensor with another number of elements.
  void set_buffer(at::Tensor buffer);
  // The parameters whose gradients are in the bucket.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  // Views of the buffer, one for each parameter, with the parameter's shape and layout.
  std::vector<at::Tensor> gradients() const;
  // As gradients(), but each view has one dimension: the gradient's elements in the order of the memory.
  std::vector<at::Tensor> flat_gradients() const;

  // For a hook that steps optimizers before the pass ends: makes the averages in `result`, which has the
  // elements of the first buffer, the gradients of the bucket's parameters. A parameter is complete only when
  // the pass does not need its value any more, so an optimizer may step it after this call, also with
  // mixed_precision: the parameters get their full precision. `.grad` is set for the parameters for which
  // `chosen` returns true. Returns the first buffer, which is the result of the hook then.
  at::Tensor complete(const at::Tensor& result, const std::function<bool(const at::Tensor&)>& chosen);

 private:
  const std::size_t index_;
  const bool is_last_;
  // The buffer in which the replica expects the result.
  const at::Tensor first_;
  at::Tensor buffer_;
  const std::vector<at::Tensor> parameters_;
  const Restore restore_;
};

}  // namespace gradwire::data_parallel

// These names had this namespace before.
namespace gradwire::collectives {
using data_parallel::GradBucket;
}  // namespace gradwire::collectives
