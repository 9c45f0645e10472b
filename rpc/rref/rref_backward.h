#pragma once

#include <concepts>
#include <cstdint>

#include "gradwire/base/error.h"

namespace at {
class Tensor;
}

namespace gradwire::rpc {

template <class T>
class RRef;

// How RRef::backward() reaches //autograd, a layer above: nullptr where the program was linked without.
using RRefBackward = void (*)(const RRef<at::Tensor>& reference, int64_t context, bool retain_graph);
RRefBackward rref_backward();
// During static initialisation.
void set_rref_backward(RRefBackward backward);

template <class C>
int64_t autograd_context_id(const C& context) {
  if constexpr (std::integral<C>) {
    return static_cast<int64_t>(context);
  } else {
    return context.id();
  }
}

}  // namespace gradwire::rpc
