#include "autograd/context_table.h"

#include <algorithm>
#include <limits>

#include "autograd/deliberate_bug.h"

namespace gradwire::autograd {

ContextTable::Entry ContextTable::enter(const rpc::Id& context) {
  if (live_.contains(context)) return Entry::kLive;
  Origin& origin = origins_[context.origin];
  const bool released = context.counter < origin.low || origin.released.contains(context.counter);
  if (released && !deliberate_bug(DeliberateBug::kReviveContext)) return Entry::kReleased;
  if (live_.size() >= kMaxLive) return Entry::kTooMany;
  origin.live.insert(context.counter);
  live_.try_emplace(context);
  return Entry::kNew;
}

bool ContextTable::touch(const rpc::Id& context, uint64_t worker) {
  auto found = live_.find(context);
  if (found == live_.end()) return false;
  if (!deliberate_bug(DeliberateBug::kForgetTouched)) found->second.insert(worker);
  return true;
}

std::vector<uint64_t> ContextTable::touched(const rpc::Id& context) const {
  auto found = live_.find(context);
  if (found == live_.end()) return {};
  return {found->second.begin(), found->second.end()};
}

std::optional<std::vector<uint64_t>> ContextTable::release(const rpc::Id& context, uint64_t low) {
  Origin& origin = origins_[context.origin];
  origin.low = std::max(origin.low, low);
  origin.released.erase(origin.released.begin(), origin.released.lower_bound(origin.low));
  if (context.counter >= origin.low) origin.released.insert(context.counter);
  origin.live.erase(context.counter);
  auto found = live_.find(context);
  if (found == live_.end()) return std::nullopt;
  std::vector<uint64_t> touched(found->second.begin(), found->second.end());
  live_.erase(found);
  return touched;
}

std::vector<rpc::Id> ContextTable::overdue(uint64_t origin) const {
  std::vector<rpc::Id> contexts;
  auto found = origins_.find(origin);
  if (found == origins_.end()) return contexts;
  for (uint64_t counter : found->second.live) {
    if (counter >= found->second.low) break;
    contexts.push_back({origin, counter});
  }
  return contexts;
}

uint64_t ContextTable::low(uint64_t self, uint64_t next) const {
  auto found = origins_.find(self);
  if (found == origins_.end() || found->second.live.empty()) return next;
  if (deliberate_bug(DeliberateBug::kHighWatermark)) return next;
  return *found->second.live.begin();
}

std::vector<rpc::Id> ContextTable::origin_lost(uint64_t origin) {
  std::vector<rpc::Id> contexts;
  // The row stays: another worker may still speak of these contexts.
  Origin& row = origins_[origin];
  row.low = std::numeric_limits<uint64_t>::max();
  row.released.clear();
  for (uint64_t counter : row.live) contexts.push_back({origin, counter});
  return contexts;
}

void ContextTable::worker_lost(uint64_t worker) {
  for (auto& [context, touched] : live_) touched.erase(worker);
}

std::size_t ContextTable::remembered() const {
  std::size_t count = 0;
  for (const auto& [incarnation, origin] : origins_) count += origin.released.size();
  return count;
}

}  // namespace gradwire::autograd
