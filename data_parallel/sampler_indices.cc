#include "gradwire/data_parallel/sampler_indices.h"

#include <numeric>
#include <random>
#include <utility>

namespace gradwire::data_parallel {
namespace {

// A random number below `bound`, uniformly distributed. std::uniform_int_distribution is not used, because
// its numbers differ between standard libraries. Numbers from the last, incomplete range of `bound` values
// are drawn again.
uint64_t below(std::mt19937_64& random, uint64_t bound) {
  const uint64_t rest = (~uint64_t{0} % bound + 1) % bound;
  for (;;) {
    const uint64_t drawn = random();
    if (drawn <= ~uint64_t{0} - rest) return drawn % bound;
  }
}

}  // namespace

std::size_t samples_of_each_rank(const SamplerPlan& plan) {
  return plan.size / plan.num_replicas + (!plan.drop_last && plan.size % plan.num_replicas != 0 ? 1 : 0);
}

std::vector<std::size_t> sampler_indices(const SamplerPlan& plan, uint64_t epoch) {
  const std::size_t count = samples_of_each_rank(plan);
  std::vector<std::size_t> mine(count);
  if (count == 0) return mine;
  if (!plan.shuffle) {
    for (std::size_t i = 0; i < count; ++i) mine[i] = (i * plan.num_replicas + plan.rank) % plan.size;
    return mine;
  }
  std::vector<std::size_t> all(plan.size);
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::mt19937_64 random(plan.seed + epoch);
  for (std::size_t left = all.size(); left > 1; --left) std::swap(all[left - 1], all[below(random, left)]);
  for (std::size_t i = 0; i < count; ++i) mine[i] = all[(i * plan.num_replicas + plan.rank) % plan.size];
  return mine;
}

}  // namespace gradwire::data_parallel
