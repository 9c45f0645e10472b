#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradwire::collectives {

// Which parameters share a bucket: indices into the list of parameters, in the order of their places in the
// bucket.
using Buckets = std::vector<std::vector<std::size_t>>;

struct BucketCaps {
  // A bucket is closed when it has reached so many bytes: a parameter is never split. The first one may be
  // smaller, so that its reduction starts early.
  uint64_t first = uint64_t{1} << 20;
  uint64_t others = uint64_t{25} << 20;
};

struct PlannedParameter {
  uint64_t bytes = 0;
  // Parameters of different kinds (dtype, device) are never in one bucket.
  int kind = 0;
};

// Fills buckets with the parameters in the order in which their gradients are expected; `order` is a
// permutation of all indices. Buckets are in the order in which they are expected to be complete. A pure
// function: equal on all ranks where the arguments are.
Buckets plan_buckets(const std::vector<PlannedParameter>& parameters, const std::vector<std::size_t>& order,
                     const BucketCaps& caps);

// n - 1, ..., 0: what is registered last is mostly used last, and its gradient ready first.
std::vector<std::size_t> reverse_order(std::size_t n);

bool is_permutation_of_all(const std::vector<int64_t>& order, std::size_t n);

}  // namespace gradwire::collectives
