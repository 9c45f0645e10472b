#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "gradwire/base/futures/future.h"

// The functions that the programs of these tests register.
namespace fork_test {

int64_t twice(int64_t number);
at::Tensor tensor(int64_t size);  // Ones.
// Its call never ends.
gradwire::Future<int64_t> never();
// Forks. Returns the child's id, and in the child 0.
int64_t forks();

}  // namespace fork_test
