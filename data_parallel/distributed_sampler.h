#pragma once

#include <torch/data/samplers/base.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "gradwire/data_parallel/sampler_indices.h"

namespace gradwire::collectives {

// How the indices are dealt out.
struct DistributedSamplerOptions {
  // How many ranks share the data, and which one this is; -1: the world's where there is one, else 1 and 0.
  int64_t num_replicas = -1;
  // This rank, 0..num_replicas-1.
  int64_t rank = -1;
  // Another order in each epoch, the same on all ranks that have the same seed.
  bool shuffle = true;
  // The order of an epoch depends on the size and on seed + epoch alone.
  int64_t seed = 0;
  // Leaves out what is not evenly divisible; else the first samples of the order come twice.
  bool drop_last = false;
};

// Deals the indices of a data set out to the ranks of a job, each its share; a torch::data sampler, as
// torch's DistributedSampler in its properties (sampler_indices.h), but not its random numbers.
//
// Copies have one epoch and each its own place: set_epoch() of the one that the program keeps reaches the one
// that it gave to a data loader, when that is reset for its next epoch. Not thread-safe, but set_epoch() is
// beside another copy.
//
//   DistributedSampler sampler(data.size(), {.seed = 1});
//   auto loader = torch::data::make_data_loader(std::move(data), sampler, 32);
//   for (int epoch = 0; epoch < n; ++epoch) { sampler.set_epoch(epoch); for (auto& batch : *loader) ... }
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  // Throws Error, InvalidArgument: a rank that is not below num_replicas, or one given without the other
  // outside a world.
  explicit DistributedSampler(std::size_t size, const DistributedSamplerOptions& options = {});

  // Begins the epoch; for copies, when they are reset.
  void set_epoch(uint64_t epoch);
  // What set_epoch() of any copy said last; 0 before.
  uint64_t epoch() const { return epoch_->load(); }
  // Indices in an epoch, of each rank.
  std::size_t size() const { return samples_of_each_rank(plan_); }

  // From the first index of the current epoch on, of a set of `new_size` if given.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  // At most `batch_size` indices; none when the epoch is over.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  // The epoch and the place in it.
  void save(torch::serialize::OutputArchive& archive) const override;
  // Goes on from where save() was called. Throws what the archive throws for a missing or another kind of
  // entry.
  void load(torch::serialize::InputArchive& archive) override;

 private:
  SamplerPlan plan_;
  std::shared_ptr<std::atomic<uint64_t>> epoch_;
  // The epoch that `indices_` are of, once they are needed.
  uint64_t dealt_epoch_ = 0;
  bool is_dealt_ = false;
  std::vector<std::size_t> indices_;
  std::size_t place_ = 0;
};

}  // namespace gradwire::collectives
