#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace gradwire::autograd {

// A map from tensor to gradient; tensors are distinguished by identity, as torch's own maps of gradients do.
// Iterates in the order in which the gradients first came. Not thread-safe.
class Gradients {
 public:
  struct Entry {
    at::Tensor tensor;
    at::Tensor gradient;
  };

  // Throws Error, NotFound, when the tensor has none.
  const at::Tensor& at(const at::Tensor& tensor) const;
  // nullptr when the tensor has none.
  const at::Tensor* find(const at::Tensor& tensor) const;
  // One for each tensor, undefined where it has none.
  std::vector<at::Tensor> of(const std::vector<at::Tensor>& tensors) const;
  bool contains(const at::Tensor& tensor) const { return find(tensor) != nullptr; }
  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  std::vector<Entry>::const_iterator begin() const { return entries_.begin(); }
  std::vector<Entry>::const_iterator end() const { return entries_.end(); }

  // The gradient of `tensor`, undefined when it is new.
  at::Tensor& operator[](const at::Tensor& tensor);

 private:
  std::vector<Entry> entries_;
  absl::flat_hash_map<const void*, std::size_t> index_;
};

// Adds `gradient` to what `gradients` has for the leaf `variable`, laid out as libtorch lays out `.grad`; in
// place only where nobody else can hold the memory. With GradMode on (create_graph) as it is. Throws what
// libtorch throws.
void accumulate(Gradients& gradients, const at::Tensor& variable, at::Tensor gradient);

}  // namespace gradwire::autograd
