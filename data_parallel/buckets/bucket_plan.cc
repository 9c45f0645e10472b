#include "gradwire/data_parallel/buckets/bucket_plan.h"

#include <algorithm>
#include <map>
#include <utility>

namespace gradwire::data_parallel {

// A bucket has one dtype and one device (kind), because it is one flat tensor. Each kind fills its open
// bucket in the order of readiness and closes it when it reaches the cap. The first bucket has a smaller
// cap, so that the first reduction starts early.
Buckets plan_buckets(const std::vector<PlannedParameter>& parameters, const std::vector<std::size_t>& order,
                     const BucketCaps& caps) {
  struct OpenBucket {
    std::vector<std::size_t> members;
    uint64_t bytes = 0;
    std::size_t last_position = 0;
  };
  // One open bucket for each kind of parameter.
  std::map<int, OpenBucket> open;
  Buckets buckets;
  for (std::size_t position = 0; position < order.size(); ++position) {
    const PlannedParameter& parameter = parameters[order[position]];
    if (parameter.alone) {
      buckets.push_back({order[position]});
      continue;
    }
    OpenBucket& bucket = open[parameter.kind];
    bucket.members.push_back(order[position]);
    bucket.bytes += parameter.bytes;
    bucket.last_position = position;
    if (bucket.bytes < (buckets.empty() ? caps.first : caps.others)) continue;
    buckets.push_back(std::move(bucket.members));
    open.erase(parameter.kind);
  }
  // The remaining buckets are complete when their last gradient is, so sort them by that.
  std::vector<OpenBucket> rest;
  for (auto& [kind, bucket] : open) rest.push_back(std::move(bucket));
  std::sort(rest.begin(), rest.end(),
            [](const OpenBucket& a, const OpenBucket& b) { return a.last_position < b.last_position; });
  for (OpenBucket& bucket : rest) buckets.push_back(std::move(bucket.members));
  return buckets;
}

std::vector<std::size_t> reverse_order(std::size_t n) {
  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = n - 1 - i;
  return order;
}

bool is_permutation_of_all(const std::vector<int64_t>& order, std::size_t n) {
  if (order.size() != n) return false;
  std::vector<bool> seen(n);
  for (int64_t index : order) {
    if (index < 0 || static_cast<std::size_t>(index) >= n || seen[index]) return false;
    seen[index] = true;
  }
  return true;
}

}  // namespace gradwire::data_parallel
