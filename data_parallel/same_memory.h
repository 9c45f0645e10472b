#pragma once

#include <ATen/core/Tensor.h>

namespace gradwire::collectives {

// Whether both are the same elements at the same places.
inline bool has_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.layout() == at::kStrided && b.layout() == at::kStrided &&
         a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

}  // namespace gradwire::collectives
