#include "gradwire/autograd/context/context_table.h"

#include <algorithm>

namespace gradwire::autograd {

ContextTable::Origin* ContextTable::row_of(uint64_t origin) {
  auto found = origins_.find(origin);
  if (found != origins_.end()) return &found->second;
  if (origins_.size() >= bounds_.origins) return nullptr;
  return &origins_[origin];
}

// Problem: a message may arrive after the release of its context has overtaken it. If it made the context
// live again, nothing would ever end that context. Steps:
// 1. A live context stays live, and the sender becomes a party.
// 2. A context is refused if its origin is lost or has released it, or if this sender itself has claimed its
//    end. Messages of other workers are not affected by that claim.
// 3. The limits are checked before anything is added, because peers choose the ids.
ContextTable::Entry ContextTable::enter(const rpc::Id& context, uint64_t from) {
  auto live = live_.find(context);
  if (live != live_.end()) {
    if (from != 0) live->second.senders.insert(from);
    return Entry::kLive;
  }
  if (is_lost(context.origin)) return Entry::kReleased;
  auto known = origins_.find(context.origin);
  if (known != origins_.end()) {
    const Origin& origin = known->second;
    const bool released = context.counter < origin.low || origin.released.contains(context.counter) ||
                          origin.claims.contains({context.counter, from});
    if (released) return Entry::kReleased;
  }
  if (live_.size() >= bounds_.live) return Entry::kTooMany;
  if (from != 0 && opened_by(from) >= bounds_.live_of_sender) return Entry::kTooManyOfSender;
  Origin* const origin = row_of(context.origin);
  if (origin == nullptr) return Entry::kTooMany;
  origin->live.insert(context.counter);
  Row& row = live_[context];
  row.opener = from;
  if (from != 0) {
    row.senders.insert(from);
    opened_.add(from);
  }
  return Entry::kNew;
}

bool ContextTable::touch(const rpc::Id& context, uint64_t worker) {
  auto found = live_.find(context);
  if (found == live_.end()) return false;
  found->second.touched.insert(worker);
  return true;
}

std::vector<uint64_t> ContextTable::touched(const rpc::Id& context) const {
  auto found = live_.find(context);
  if (found == live_.end()) return {};
  return {found->second.touched.begin(), found->second.touched.end()};
}

void ContextTable::remember_released(Origin& origin, uint64_t counter) {
  origin.live.erase(counter);
  if (counter >= origin.low) origin.released.insert(counter);
  // The lowest counter is the oldest context, whose messages are the least likely to arrive still.
  if (origin.released.size() > bounds_.released) origin.released.erase(origin.released.begin());
  // The context has ended for all workers now, so the claims of single workers are not needed.
  auto claim = origin.claims.lower_bound({counter, 0});
  while (claim != origin.claims.end() && claim->first == counter) claim = origin.claims.erase(claim);
}

// 1. Raise the watermark. Released counters and claims below it are redundant and are dropped.
// 2. Remember the release of this context, so that a late message does not make it live again. At the limit
//    of origins this is not possible.
// 3. Remove the context if it is live.
std::optional<std::vector<uint64_t>> ContextTable::release(const rpc::Id& context, uint64_t low) {
  Origin* const origin = is_lost(context.origin) ? nullptr : row_of(context.origin);
  if (origin != nullptr) {
    origin->low = std::max(origin->low, low);
    origin->released.erase(origin->released.begin(), origin->released.lower_bound(origin->low));
    origin->claims.erase(origin->claims.begin(), origin->claims.lower_bound({origin->low, 0}));
    remember_released(*origin, context.counter);
  }
  auto found = live_.find(context);
  if (found == live_.end()) return std::nullopt;
  std::vector<uint64_t> touched(found->second.touched.begin(), found->second.touched.end());
  opened_.remove(found->second.opener);
  live_.erase(found);
  return touched;
}

void ContextTable::end(const rpc::Id& context, std::vector<Ended>& ended) {
  // With 0 the watermark does not change.
  if (auto touched = release(context, 0)) ended.push_back({context, *std::move(touched)});
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

ContextTable::Cleanup ContextTable::cleanup(const rpc::Id& context, uint64_t low, uint64_t from) {
  // A CLEANUP is trusted as far as its sender takes part in the context:
  // 1. From the origin it ends the context and every context below the watermark.
  // 2. From a party it ends the context.
  // 3. From any other worker it is recorded as a claim, and counts against messages of that worker only.
  // 4. In cases 2 and 3 the watermark ends only contexts in which the sender takes part, or without a party.
  Cleanup result;
  if (from == context.origin) {
    if (auto touched = release(context, low)) result.ended.push_back({context, *std::move(touched)});
    for (const rpc::Id& each : overdue(context.origin)) end(each, result.ended);
    return result;
  }
  auto live = live_.find(context);
  if (live != live_.end() && (live->second.has_party(from) || !live->second.has_parties())) {
    end(context, result.ended);
  } else {
    result.refused = live != live_.end();
    Origin* const origin = is_lost(context.origin) ? nullptr : row_of(context.origin);
    const bool unknown =
        origin != nullptr && context.counter >= origin->low && !origin->released.contains(context.counter);
    if (unknown) origin->claims.insert({context.counter, from});
    if (unknown && origin->claims.size() > bounds_.released) origin->claims.erase(origin->claims.begin());
  }
  // The CLEANUPs of the contexts below `low` were lost with a worker, or are on their way.
  auto row = origins_.find(context.origin);
  if (row == origins_.end()) return result;
  std::vector<rpc::Id> below;
  for (uint64_t counter : row->second.live) {
    if (counter >= low) break;
    const Row& each = live_.at({context.origin, counter});
    if (each.has_party(from) || !each.has_parties()) below.push_back({context.origin, counter});
  }
  for (const rpc::Id& each : below) end(each, result.ended);
  return result;
}

uint64_t ContextTable::low(uint64_t self, uint64_t next) const {
  auto found = origins_.find(self);
  if (found == origins_.end() || found->second.live.empty()) return next;
  return *found->second.live.begin();
}

std::vector<rpc::Id> ContextTable::origin_lost(uint64_t origin) {
  std::vector<rpc::Id> contexts;
  // Other workers may still send messages of these contexts, so the origin is remembered. Its row is not
  // needed.
  lost_.insert(origin);
  auto row = origins_.find(origin);
  if (row == origins_.end()) return contexts;
  for (uint64_t counter : row->second.live) contexts.push_back({origin, counter});
  origins_.erase(row);
  return contexts;
}

// While a context has a party, that party will report the end, so a claim of another worker is not enough.
// When the last party is lost, no report can come any more, and an earlier claim ends the context.
std::vector<ContextTable::Ended> ContextTable::worker_lost(uint64_t worker) {
  std::vector<rpc::Id> alone;
  for (auto& [context, row] : live_) {
    row.touched.erase(worker);
    const bool was_party = row.senders.erase(worker) > 0;
    if (was_party && !row.has_parties()) alone.push_back(context);
  }
  std::vector<Ended> ended;
  for (const rpc::Id& context : alone) {
    auto origin = origins_.find(context.origin);
    if (origin == origins_.end()) continue;
    auto claim = origin->second.claims.lower_bound({context.counter, 0});
    if (claim == origin->second.claims.end() || claim->first != context.counter) continue;
    end(context, ended);
  }
  return ended;
}

std::size_t ContextTable::remembered() const {
  std::size_t count = 0;
  for (const auto& [incarnation, origin] : origins_) count += origin.released.size() + origin.claims.size();
  return count;
}

}  // namespace gradwire::autograd
