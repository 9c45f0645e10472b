#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace gradwire::autograd {

// A map from tensor to gradient. Tensors are compared by identity, as in torch's own maps of gradients. The
// order of iteration is the order of insertion. Not thread-safe.
class Gradients {
 public:
  struct Entry {
    at::Tensor tensor;
    at::Tensor gradient;
  };

  // Throws Error, NotFound, if the tensor has no gradient.
  const at::Tensor& at(const at::Tensor& tensor) const;
  // Returns nullptr if the tensor has no gradient.
  const at::Tensor* find(const at::Tensor& tensor) const;
  // Returns one gradient for each tensor; undefined if the tensor has none.
  std::vector<at::Tensor> of(const std::vector<at::Tensor>& tensors) const;
  bool contains(const at::Tensor& tensor) const { return find(tensor) != nullptr; }
  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  std::vector<Entry>::const_iterator begin() const { return entries_.begin(); }
  std::vector<Entry>::const_iterator end() const { return entries_.end(); }

  // Returns the gradient of `tensor`; inserts an undefined one if it has none.
  at::Tensor& operator[](const at::Tensor& tensor);

 private:
  std::vector<Entry> entries_;
  absl::flat_hash_map<const void*, std::size_t> index_;
};

// Adds `gradient` to the gradient of the leaf `variable` in `gradients`. The sum has the memory layout that
// libtorch gives `.grad`. It is computed in place only if no other tensor can use the memory. With GradMode
// on (create_graph) the gradient is neither copied nor changed in place. Throws what libtorch throws.
void accumulate(Gradients& gradients, const at::Tensor& variable, at::Tensor gradient);

}  // namespace gradwire::autograd
