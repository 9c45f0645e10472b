#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <vector>

#include "gradwire/base/containers/hash_map.h"

namespace gradwire::autograd {

// A map from tensor to gradient. Tensors are compared by identity, as in torch's own maps of gradients. The
// order of iteration is the order of insertion. Not thread-safe.
//
// A gradient on an accelerator is computed on a stream. The map remembers this stream, so that passes and
// readers on any thread follow each other without blocking the host. For gradients on the CPU the map
// remembers nothing.
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

  // Returns a copy whose gradients are ready on the current streams of the calling thread.
  Gradients hand_out();
  // Same as of(), with gradients that are ready on the current streams of the calling thread.
  std::vector<at::Tensor> hand_out(const std::vector<at::Tensor>& tensors);
  // Replaces the gradient of `tensor` by one that is ready on the current stream of the calling thread, and
  // returns the old one.
  at::Tensor replace(const at::Tensor& tensor, at::Tensor gradient);
  // Makes the gradient of `tensor` ready on the current stream of the calling thread, which then computes a
  // sum with it.
  void begin_change(const at::Tensor& tensor);
  // Records that the gradient of `tensor` has been computed on the current stream of the calling thread.
  void end_change(const at::Tensor& tensor);

 private:
  // Makes the gradient of this entry ready on the current stream of its device.
  void make_ready(const Entry& entry);

  std::vector<Entry> entries_;
  HashMap<const void*, std::size_t> index_;
  // The streams on which gradients are ready, by their tensors. Only for gradients on an accelerator.
  HashMap<const void*, c10::Stream> streams_;
};

// Adds `gradient` to the gradient of the leaf `variable` in `gradients`. On an accelerator `gradient` must be
// ready on the current stream of the calling thread, and the sum is computed there. The sum has the memory
// layout that libtorch gives `.grad`. It is computed in place only on the CPU, if no other tensor can use the
// memory. With GradMode on (create_graph) the gradient is neither copied nor changed in place. Throws what
// libtorch throws.
void accumulate(Gradients& gradients, const at::Tensor& variable, at::Tensor gradient);

}  // namespace gradwire::autograd
