#pragma once

#include <c10/core/Storage.h>

namespace gradwire::device {

// Whether the memory has a deleter of the program (at::from_blob), which may wait or want a mutex. Memory of
// libtorch's allocators has none, nor has memory that the program frees by itself.
inline bool has_own_deleter(const c10::Storage& memory) {
  return memory.allocator() == nullptr && memory.data_ptr().get_context() != nullptr;
}

}  // namespace gradwire::device
