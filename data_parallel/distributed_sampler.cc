#include "gradwire/data_parallel/distributed_sampler.h"

#include <ATen/ops/scalar_tensor.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/world.h"

namespace gradwire::data_parallel {
namespace {

SamplerPlan make_plan(std::size_t size, const DistributedSamplerOptions& options) {
  int64_t replicas = options.num_replicas;
  int64_t rank = options.rank;
  // Values that are not given come from the process group, or describe the only replica if there is no
  // group.
  if ((replicas < 0 || rank < 0) && collectives::is_initialized()) {
    const collectives::Group group = collectives::world();
    if (replicas < 0) replicas = group->size();
    if (rank < 0) rank = group->rank();
  }
  if (replicas < 0 && rank < 0) {
    replicas = 1;
    rank = 0;
  }
  if (replicas < 1 || rank < 0 || rank >= replicas) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "invalid rank or num_replicas of DistributedSampler: got rank ", rank, ", num_replicas ", replicas,
        replicas < 0 || rank < 0 ? "; without a process group set both or neither of them" : "")));
  }
  return {.size = size,
          .num_replicas = static_cast<std::size_t>(replicas),
          .rank = static_cast<std::size_t>(rank),
          .shuffle = options.shuffle,
          .seed = static_cast<uint64_t>(options.seed),
          .drop_last = options.drop_last};
}

}  // namespace

DistributedSampler::DistributedSampler(std::size_t size, const DistributedSamplerOptions& options)
    : plan_(make_plan(size, options)), epoch_(std::make_shared<std::atomic<uint64_t>>(0)) {}

void DistributedSampler::set_epoch(uint64_t epoch) {
  epoch_->store(epoch);
  reset();
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  if (new_size.has_value()) plan_.size = *new_size;
  has_indices_ = false;
  position_ = 0;
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  if (!has_indices_) {
    indices_epoch_ = epoch_->load();
    indices_ = sampler_indices(plan_, indices_epoch_);
    has_indices_ = true;
  }
  const std::size_t count = std::min(batch_size, indices_.size() - std::min(position_, indices_.size()));
  if (count == 0) return std::nullopt;
  const auto first = indices_.begin() + static_cast<std::ptrdiff_t>(position_);
  position_ += count;
  return std::vector<std::size_t>(first, first + static_cast<std::ptrdiff_t>(count));
}

// Saves the epoch of the indices that are in use: set_epoch() may have been called on another copy, which
// shares the epoch, since they were drawn.
void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  const uint64_t epoch = has_indices_ ? indices_epoch_ : epoch_->load();
  archive.write("epoch", at::scalar_tensor(static_cast<int64_t>(epoch), at::kLong), /*is_buffer=*/true);
  archive.write("place", at::scalar_tensor(static_cast<int64_t>(position_), at::kLong), /*is_buffer=*/true);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  at::Tensor epoch, position;
  archive.read("epoch", epoch, /*is_buffer=*/true);
  archive.read("place", position, /*is_buffer=*/true);
  set_epoch(static_cast<uint64_t>(epoch.item<int64_t>()));
  position_ = static_cast<std::size_t>(std::max<int64_t>(0, position.item<int64_t>()));
}

}  // namespace gradwire::data_parallel
