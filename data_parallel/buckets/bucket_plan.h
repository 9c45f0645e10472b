#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradwire::data_parallel {

// The parameters of each bucket, as indices into the list of parameters, in the order of their gradients in
// the bucket.
using Buckets = std::vector<std::vector<std::size_t>>;

struct BucketCaps {
  // A bucket is closed when it has at least this number of bytes; a parameter is never split. The first
  // bucket may have a smaller limit, so that its reduction starts early.
  uint64_t first = uint64_t{1} << 20;
  uint64_t others = uint64_t{25} << 20;
};

struct PlannedParameter {
  uint64_t bytes = 0;
  // A number for the parameter's dtype and device. Parameters of different kinds are never in one bucket.
  int kind = 0;
  // Whether the parameter has a bucket of its own.
  bool alone = false;
};

// Divides the parameters into buckets. `order`: the order in which their gradients are expected, a
// permutation of all indices. The result has the buckets in the order in which they are expected to be
// complete. The result depends only on the arguments, so all ranks with equal arguments get equal buckets.
Buckets plan_buckets(const std::vector<PlannedParameter>& parameters, const std::vector<std::size_t>& order,
                     const BucketCaps& caps);

// Returns n - 1, ..., 0. A parameter that is registered last is usually used last, so its gradient is ready
// first.
std::vector<std::size_t> reverse_order(std::size_t n);

// Whether `order` contains each of 0, ..., n - 1 exactly once.
bool is_permutation_of_all(const std::vector<int64_t>& order, std::size_t n);

}  // namespace gradwire::data_parallel
