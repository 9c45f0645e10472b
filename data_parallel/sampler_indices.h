#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradwire::data_parallel {

// How the indices of a data set are divided among ranks.
struct SamplerPlan {
  std::size_t size = 0;
  std::size_t num_replicas = 1;
  // Must be less than num_replicas.
  std::size_t rank = 0;
  bool shuffle = true;
  uint64_t seed = 0;
  bool drop_last = false;
};

// Number of indices of each rank in an epoch, equal for all ranks: size / num_replicas, rounded up, or
// rounded down with drop_last.
std::size_t samples_of_each_rank(const SamplerPlan& plan);

// The rank's indices in the epoch:
//   1. Take all indices, in order, or permuted if `shuffle`. The permutation depends only on seed + epoch,
//      and is equal on every machine.
//   2. Make the length a multiple of num_replicas: repeat the list from its beginning, or cut it with
//      drop_last.
//   3. Take every num_replicas-th index, beginning with the index at position `rank`.
std::vector<std::size_t> sampler_indices(const SamplerPlan& plan, uint64_t epoch);

}  // namespace gradwire::data_parallel
