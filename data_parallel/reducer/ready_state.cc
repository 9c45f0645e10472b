#include "gradwire/data_parallel/reducer/ready_state.h"

#include <utility>

namespace gradwire::data_parallel {

ReadyState::ReadyState(Buckets buckets, std::size_t parameters)
    : buckets_(std::move(buckets)), bucket_of_(parameters) {
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (std::size_t parameter : buckets_[bucket]) bucket_of_[parameter] = bucket;
  }
  reset();
}

bool ReadyState::mark(std::size_t parameter, bool by_gradient) {
  if (marked_[parameter]) return false;
  marked_[parameter] = true;
  if (by_gradient) order_.push_back(parameter);
  --unmarked_[bucket_of_[parameter]];
  return true;
}

// A complete bucket waits for those before it. Otherwise the ranks would start the reductions in different
// orders, which would mix up the buckets of different ranks.
std::optional<std::size_t> ReadyState::take_complete() {
  if (all_taken() || unmarked_[taken_] > 0) return std::nullopt;
  return taken_++;
}

std::vector<std::size_t> ReadyState::missing() const {
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < marked_.size(); ++i) {
    if (!marked_[i]) missing.push_back(i);
  }
  return missing;
}

// The parameters without a gradient follow in the order of the first buckets, so that the result is a
// permutation of all.
std::vector<std::size_t> ReadyState::order() const {
  std::vector<std::size_t> all = order_;
  std::vector<bool> has_gradient(marked_.size());
  for (std::size_t parameter : order_) has_gradient[parameter] = true;
  for (std::size_t parameter : reverse_order(has_gradient.size())) {
    if (!has_gradient[parameter]) all.push_back(parameter);
  }
  return all;
}

void ReadyState::reset() {
  started_ = false;
  taken_ = 0;
  order_.clear();
  marked_.assign(bucket_of_.size(), false);
  unmarked_.clear();
  for (const std::vector<std::size_t>& bucket : buckets_) unmarked_.push_back(bucket.size());
}

}  // namespace gradwire::data_parallel
