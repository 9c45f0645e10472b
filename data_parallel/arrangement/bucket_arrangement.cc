#include "gradwire/data_parallel/arrangement/bucket_arrangement.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/group/rank_names.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/buckets/bucket_plan.h"

namespace gradwire::data_parallel {
namespace {

// The order of the group's first rank. `mine`: this rank's order of the same parameters, a permutation of 0,
// ..., n - 1. `device`: where the message is. All ranks must call it. Throws the group's errors, and Internal
// if the order is not a permutation.
std::vector<std::size_t> agree_on_order(collectives::ProcessGroup& group,
                                        const std::vector<std::size_t>& mine, at::Device device) {
  at::Tensor order = at::empty({static_cast<int64_t>(mine.size())}, at::kLong);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    order.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(mine[i]);
  }
  order = order.to(device);
  group.broadcast(order, group.ranks()[0]);
  order = order.cpu();
  const int64_t* data = order.const_data_ptr<int64_t>();
  const std::vector<int64_t> agreed(data, data + order.numel());
  // It comes from another process.
  if (!is_permutation_of_all(agreed, mine.size())) {
    throw Error(
        absl::InternalError(absl::StrCat("malformed order of the parameters from ",
                                         collectives::name_rank(0, group.ranks()), ": not a permutation")));
  }
  return std::vector<std::size_t>(agreed.begin(), agreed.end());
}

// Caps that the trials compare with the default. Small buckets start earlier, and large ones have fewer
// messages.
constexpr uint64_t kCandidates[] = {uint64_t{100} << 20, uint64_t{8} << 20, uint64_t{2} << 20};

}  // namespace

BucketArrangement::BucketArrangement(std::shared_ptr<collectives::ProcessGroup> group, const BucketCaps& caps,
                                     bool tunes, const Clock& clock)
    : group_(std::move(group)), caps_(caps), clock_(clock), tunes_(tunes && group_->size() > 1) {}

void BucketArrangement::pass_ended(const std::vector<std::size_t>& order) {
  // Only the first pass determines the order.
  if (order_.empty()) order_ = order;
  if (!tuner_.has_value() || !tuner_->trying()) return;
  // A rank without data has no time of its own, and must not decide for the others.
  tuner_->add(began_.has_value() ? clock_.now() - *std::exchange(began_, std::nullopt)
                                 : absl::ZeroDuration());
}

bool BucketArrangement::before_pass(GradientBuckets& buckets, bool may_tune) {
  if (order_.empty()) return false;
  if (!may_tune) tunes_ = false;
  if (!arranged_) {
    arranged_ = true;
    // One bucket has no order to improve. The number of buckets is equal on all ranks, so all of them return
    // here.
    if (buckets.buckets().size() == 1) return false;
    order_ = agree_on_order(*group_, order_, buckets.device());
    arrange(buckets, caps_.others);
    start_trials(buckets);
    return true;
  }
  if (!tuner_.has_value()) return false;
  if (tuner_->measured() || !may_tune) {
    end_trials(buckets);
    return true;
  }
  if (!tuner_->advance()) return false;
  arrange(buckets, tuner_->cap());
  return true;
}

void BucketArrangement::arrange(GradientBuckets& buckets, uint64_t cap) {
  buckets.arrange(order_, {.first = caps_.first, .others = cap});
}

// On an accelerator the host does not wait for the reductions, so the times would say nothing.
void BucketArrangement::start_trials(const GradientBuckets& buckets) {
  if (!tunes_ || !buckets.device().is_cpu()) return;
  std::vector<uint64_t> candidates = {caps_.others};
  std::vector<Buckets> plans = {buckets.buckets()};
  for (const uint64_t cap : kCandidates) {
    Buckets plan = buckets.plan(order_, {.first = caps_.first, .others = cap});
    if (std::find(plans.begin(), plans.end(), plan) != plans.end()) continue;
    plans.push_back(std::move(plan));
    candidates.push_back(cap);
  }
  if (candidates.size() > 1) tuner_.emplace(std::move(candidates));
}

void BucketArrangement::end_trials(GradientBuckets& buckets) {
  std::vector<double> seconds = tuner_->fastest();
  const at::Tensor slowest = at::empty({static_cast<int64_t>(seconds.size())}, at::kDouble);
  std::copy(seconds.begin(), seconds.end(), slowest.mutable_data_ptr<double>());
  group_->all_reduce(slowest, collectives::ReduceOp::kMax);
  const double* data = slowest.const_data_ptr<double>();
  seconds.assign(data, data + seconds.size());
  const uint64_t last = tuner_->cap();
  tuner_->choose(seconds);
  if (tuner_->cap() != last) arrange(buckets, tuner_->cap());
  tuner_.reset();
}

}  // namespace gradwire::data_parallel
