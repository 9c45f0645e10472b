#include "gradwire/data_parallel/bucket_plan.h"

#include <algorithm>
#include <map>
#include <utility>

namespace gradwire::collectives {

Buckets plan_buckets(const std::vector<PlannedParameter>& parameters, const std::vector<std::size_t>& order,
                     const BucketCaps& caps) {
  struct Open {
    std::vector<std::size_t> members;
    uint64_t bytes = 0;
    std::size_t last_place = 0;
  };
  std::map<int, Open> open;
  Buckets buckets;
  for (std::size_t place = 0; place < order.size(); ++place) {
    const PlannedParameter& parameter = parameters[order[place]];
    Open& bucket = open[parameter.kind];
    bucket.members.push_back(order[place]);
    bucket.bytes += parameter.bytes;
    bucket.last_place = place;
    if (bucket.bytes < (buckets.empty() ? caps.first : caps.others)) continue;
    buckets.push_back(std::move(bucket.members));
    open.erase(parameter.kind);
  }
  std::vector<Open> rest;
  for (auto& [kind, bucket] : open) rest.push_back(std::move(bucket));
  std::sort(rest.begin(), rest.end(),
            [](const Open& a, const Open& b) { return a.last_place < b.last_place; });
  for (Open& bucket : rest) buckets.push_back(std::move(bucket.members));
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

}  // namespace gradwire::collectives
