#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradwire::collectives {

// How a data set is shared out.
struct SamplerPlan {
  std::size_t size = 0;
  std::size_t num_replicas = 1;
  // < num_replicas.
  std::size_t rank = 0;
  bool shuffle = true;
  uint64_t seed = 0;
  bool drop_last = false;
};

// How many indices each rank has in an epoch: equally many. Rounded up, or down with drop_last.
std::size_t samples_of_each_rank(const SamplerPlan& plan);

// The rank's indices in the epoch: the whole set, in order or permuted by seed + epoch alone, padded from its
// beginning (as often as it takes) or cut to be evenly divisible; of that every num_replicas-th, from the
// rank-th on. The permutation is this library's own and the same on every machine.
std::vector<std::size_t> sampler_indices(const SamplerPlan& plan, uint64_t epoch);

}  // namespace gradwire::collectives
