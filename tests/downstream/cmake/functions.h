#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace downstream {

// Runs on a worker. Returns `x` multiplied by `by`.
at::Tensor scale(const at::Tensor& x, double by);

// Runs on a worker. Fails for a negative number.
int64_t root(int64_t number);

// Calls root() on a worker, from this library.
int64_t remote_root(const std::string& worker, int64_t number);

// Where this library finds the registration of root(), and the registry.
const void* place_of_root();
const void* place_of_registry();

}  // namespace downstream
