#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/data_parallel/buckets/bucket_plan.h"
#include "gradwire/data_parallel/buckets/named_tensor.h"
#include "gradwire/data_parallel/devices/bucket_streams.h"

namespace gradwire::data_parallel {

// The buckets: flat tensors that hold the gradients of several parameters each. Each parameter has a view
// into its bucket, with the parameter's shape and strides, for its gradient. A parameter with sparse
// gradients has a bucket of its own without a flat tensor. Not thread-safe.
class GradientBuckets {
 public:
  // Arranges the parameters in reverse_order(). `dtype`: the dtype of the buckets of float32 parameters,
  // instead of float32; then no `.grad` is a view into its bucket. Throws Error with InvalidArgument for an
  // empty list, if a parameter is not dense, or if one with sparse gradients has no dimensions.
  GradientBuckets(std::vector<NamedTensor> parameters, const BucketCaps& caps,
                  std::optional<at::ScalarType> dtype = std::nullopt);

  // Makes new buckets for this order, a permutation of all indices. A `.grad` that is the view into the old
  // bucket becomes the view into the new one, with its values.
  void arrange(const std::vector<std::size_t>& order, const BucketCaps& caps);
  // The buckets that arrange() would make.
  Buckets plan(const std::vector<std::size_t>& order, const BucketCaps& caps) const;

  const Buckets& buckets() const { return buckets_; }
  std::size_t size() const { return leaves_.size(); }
  const std::vector<at::Tensor>& leaves() const { return leaves_; }
  at::Device device() const { return leaves_[0].device(); }
  // For messages: the names of these parameters, each in quotes, separated by commas.
  std::string names_of(const std::vector<std::size_t>& parameters) const;
  const std::string& name(std::size_t i) const { return names_[i]; }
  // The bucket's parameters, in the order of their gradients.
  std::vector<at::Tensor> leaves_of(std::size_t bucket) const;

  // The bucket's tensor, for its reduction: the calling thread's current stream waits for the streams that
  // have written gradients into it.
  at::Tensor& flat_for_reduction(std::size_t bucket);
  // The calling thread's current stream has accumulated the parameter's gradient, which may be in its bucket,
  // or is going to write it there. The next methods that write call this.
  void note_stream(std::size_t i) {
    if (!is_sparse(i)) streams_.wrote(bucket_of_[i], flat_[bucket_of_[i]]);
  }
  // Other streams write into the buckets only after the work that the calling thread's current streams have
  // now.
  void fence() { streams_.reset(flat_); }
  const at::Tensor& view(std::size_t i) const { return views_[i]; }
  // Gives each `.grad` that is a view into its bucket its own memory, so that a pass that must not change
  // `.grad` can use the buckets.
  void detach_gradients();
  // Whether the parameter's `.grad` is its view into the bucket.
  bool holds_grad(std::size_t i) const;

  // The parameter of a bucket with a sparse gradient; nullopt for a bucket with a flat tensor.
  std::optional<std::size_t> sparse_parameter(std::size_t bucket) const;
  // Whether no bucket after this one has a flat tensor.
  bool is_last_flat(std::size_t bucket) const;
  // The sparse gradient of the parameter: an input of its reduction, then the result.
  at::Tensor& sparse(std::size_t i) { return sparse_[i]; }

  // The parameter's gradient after the reduction: the view, or a copy if `copy` is true or if it cannot be
  // the view.
  at::Tensor reduced(std::size_t i, bool copy) const;

  // Copies the parameter's `.grad` into its view, unless it is the view, and makes the view its `.grad`. If
  // `.grad` is undefined, writes zeros into the view. Throws Error with InvalidArgument for a sparse
  // gradient of a parameter that was given without sparse_gradient.
  void move_grad_into_bucket(std::size_t i);
  // Writes gradient + before into the parameter's view; an undefined tensor counts as zeros. Throws as
  // move_grad_into_bucket().
  void write_sum(std::size_t i, const at::Tensor& gradient, const at::Tensor& before);

 private:
  void make_view(std::size_t i, const at::Tensor& flat, int64_t offset);

  // The dtype of the parameter's bucket.
  at::ScalarType dtype_of(std::size_t i) const;
  bool is_sparse(std::size_t i) const { return sparse_gradient_[i]; }

  const std::optional<at::ScalarType> dtype_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> leaves_;
  // The dtype of each parameter. While a pass computes in a low precision, the parameter has another one.
  std::vector<at::ScalarType> dtypes_;
  // The kind of each parameter: see PlannedParameter.
  std::vector<int> kinds_;
  Buckets buckets_;
  std::vector<std::size_t> bucket_of_;
  std::vector<at::Tensor> flat_;
  BucketStreams streams_;
  std::vector<at::Tensor> views_;
  std::vector<bool> sparse_gradient_;
  std::vector<at::Tensor> sparse_;
};

}  // namespace gradwire::data_parallel
