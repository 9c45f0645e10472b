#include "gradwire/data_parallel/distributed_sampler.h"

#include <ATen/ops/scalar_tensor.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/world.h"

namespace gradwire::collectives {
namespace {

SamplerPlan make_plan(std::size_t size, const DistributedSamplerOptions& options) {
  int64_t replicas = options.num_replicas;
  int64_t rank = options.rank;
  if ((replicas < 0 || rank < 0) && is_initialized()) {
    const Group group = world();
    if (replicas < 0) replicas = group->size();
    if (rank < 0) rank = group->rank();
  }
  if (replicas < 0 && rank < 0) {
    replicas = 1;
    rank = 0;
  }
  if (replicas < 1 || rank < 0 || rank >= replicas) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("DistributedSampler with rank ", rank, " of num_replicas ", replicas,
                     replicas < 0 || rank < 0 ? ": without a process group both are needed, or none" : "")));
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
  is_dealt_ = false;
  place_ = 0;
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  if (!is_dealt_) {
    dealt_epoch_ = epoch_->load();
    indices_ = sampler_indices(plan_, dealt_epoch_);
    is_dealt_ = true;
  }
  const std::size_t count = std::min(batch_size, indices_.size() - std::min(place_, indices_.size()));
  if (count == 0) return std::nullopt;
  const auto first = indices_.begin() + static_cast<std::ptrdiff_t>(place_);
  place_ += count;
  return std::vector<std::size_t>(first, first + static_cast<std::ptrdiff_t>(count));
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  const uint64_t epoch = is_dealt_ ? dealt_epoch_ : epoch_->load();
  archive.write("epoch", at::scalar_tensor(static_cast<int64_t>(epoch), at::kLong), /*is_buffer=*/true);
  archive.write("place", at::scalar_tensor(static_cast<int64_t>(place_), at::kLong), /*is_buffer=*/true);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  at::Tensor epoch, place;
  archive.read("epoch", epoch, /*is_buffer=*/true);
  archive.read("place", place, /*is_buffer=*/true);
  set_epoch(static_cast<uint64_t>(epoch.item<int64_t>()));
  place_ = static_cast<std::size_t>(std::max<int64_t>(0, place.item<int64_t>()));
}

}  // namespace gradwire::collectives
