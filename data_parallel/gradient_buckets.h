#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "gradwire/data_parallel/bucket_plan.h"
#include "gradwire/data_parallel/named_tensor.h"

namespace gradwire::collectives {

// Flat tensors that hold the gradients of several parameters each, and the place of every gradient in them: a
// view with the parameter's shape and strides. Not thread-safe.
class GradientBuckets {
 public:
  // Arranges in reverse_order(). Throws Error, InvalidArgument: no parameters, or one that is not dense.
  GradientBuckets(std::vector<NamedTensor> parameters, const BucketCaps& caps);

  // New buckets for this order, a permutation of all indices. A `.grad` in its place moves to the new one.
  void arrange(const std::vector<std::size_t>& order);

  const Buckets& buckets() const { return buckets_; }
  std::size_t size() const { return leaves_.size(); }
  const std::vector<at::Tensor>& leaves() const { return leaves_; }
  at::Device device() const { return leaves_[0].device(); }
  // "NAME", "NAME" of these parameters.
  std::string names_of(const std::vector<std::size_t>& parameters) const;
  const std::string& name(std::size_t i) const { return names_[i]; }

  at::Tensor& flat(std::size_t bucket) { return flat_[bucket]; }
  const at::Tensor& view(std::size_t i) const { return views_[i]; }
  // Whether the parameter's `.grad` is its place.
  bool holds_grad(std::size_t i) const;

  // Puts `.grad` into its place, zeros where there is none, and makes the place `.grad`. Throws Error,
  // InvalidArgument: sparse.
  void bring_grad(std::size_t i);
  // Puts the sum of both into the parameter's place; an undefined tensor counts as zeros. Throws as
  // bring_grad().
  void bring_sum(std::size_t i, const at::Tensor& gradient, const at::Tensor& before);

 private:
  void check_dense(std::size_t i, const at::Tensor& gradient) const;
  void place(std::size_t i, const at::Tensor& flat, int64_t offset);

  const BucketCaps caps_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> leaves_;
  std::vector<int> kinds_;
  Buckets buckets_;
  std::vector<at::Tensor> flat_;
  std::vector<at::Tensor> views_;
};

}  // namespace gradwire::collectives
