#pragma once

#include <torch/data/samplers/base.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "gradwire/data_parallel/sampler_indices.h"

namespace gradwire::data_parallel {

// Options of DistributedSampler: how the indices are divided among the ranks.
struct DistributedSamplerOptions {
  // Number of ranks that share the data; -1: the world's size, or 1 if there is no world.
  int64_t num_replicas = -1;
  // This rank, 0..num_replicas-1; -1: the rank in the world, or 0 if there is no world.
  int64_t rank = -1;
  // Whether each epoch has another order. The order is equal on all ranks with the same seed.
  bool shuffle = true;
  // The order of an epoch depends only on the size and on seed + epoch.
  int64_t seed = 0;
  // If the size is not a multiple of num_replicas: true leaves out the last samples of the order, false
  // repeats its first samples.
  bool drop_last = false;
};

// A torch::data sampler that gives each rank of a job its share of the indices of a data set. It has the
// properties of torch's DistributedSampler (sampler_indices.h), but other random numbers.
//
// Copies share the epoch, but each copy has its own position in it. So a program can call set_epoch() on its
// own copy; the copy in a data loader uses the new epoch from its next reset() on. Not thread-safe, except
// that set_epoch() may be called while another thread uses another copy.
//
//   DistributedSampler sampler(data.size(), {.seed = 1});
//   auto loader = torch::data::make_data_loader(std::move(data), sampler, 32);
//   for (int epoch = 0; epoch < n; ++epoch) { sampler.set_epoch(epoch); for (auto& batch : *loader) ... }
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  // Throws Error with InvalidArgument if rank is not below num_replicas, or if only one of the two is given
  // and there is no world.
  explicit DistributedSampler(std::size_t size, const DistributedSamplerOptions& options = {});

  // Begins this epoch. Copies begin it when they are reset.
  void set_epoch(uint64_t epoch);
  // The epoch of the last set_epoch() on any copy; 0 before the first.
  uint64_t epoch() const { return epoch_->load(); }
  // Number of indices that each rank gets in an epoch.
  std::size_t size() const { return samples_of_each_rank(plan_); }

  // Starts again at the first index of the current epoch. `new_size`: the new size of the data set, if given.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  // Returns at most `batch_size` indices; nullopt at the end of the epoch.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  // Writes the epoch and the position in it.
  void save(torch::serialize::OutputArchive& archive) const override;
  // Continues at the saved position. Throws the archive's errors if an entry is missing or has another type.
  void load(torch::serialize::InputArchive& archive) override;

 private:
  SamplerPlan plan_;
  std::shared_ptr<std::atomic<uint64_t>> epoch_;
  // The indices are computed when they are first needed; `indices_epoch_` is their epoch.
  uint64_t indices_epoch_ = 0;
  bool has_indices_ = false;
  std::vector<std::size_t> indices_;
  std::size_t position_ = 0;
};

}  // namespace gradwire::data_parallel

// These names had this namespace before.
namespace gradwire::collectives {
using data_parallel::DistributedSampler;
using data_parallel::DistributedSamplerOptions;
}  // namespace gradwire::collectives
