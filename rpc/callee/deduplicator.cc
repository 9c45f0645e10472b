#include "gradwire/rpc/callee/deduplicator.h"

#include <algorithm>

// The requests of one caller are in `entries`, ordered by their ids, so that raising the watermark visits
// only the entries below it. The answered ones are also in `order`, ordered by the time of their answers, so
// that the oldest answer is found at once. Dropping an answer does not search `order`: its id stays there,
// and is skipped or removed later.
// Every function that drops answers moves them to dropped_. An answer owns tensors, so it is destroyed by the
// caller of take_dropped(), without a lock.
namespace gradwire::rpc {

Deduplicator::Decision Deduplicator::arrive(uint64_t caller_id, uint64_t request, uint64_t watermark,
                                            Route route, absl::Time now) {
  Decision decision;
  // A message of a lost caller may still be on its way through another thread. It must not add an entry,
  // because no later event would remove it.
  if (gone_.contains(caller_id)) {
    decision.verdict = Verdict::kStale;
    return decision;
  }
  Caller& caller = callers_[caller_id];
  // The watermark comes first: it may drop the answer to this very request, if the request is a late
  // repetition.
  raise_watermark(caller, watermark, decision.unwanted);
  drop_expired(caller, now);
  auto [found, is_new] = caller.entries.try_emplace(request);
  Entry& entry = found->second;
  if (!is_new) {
    // This applies even below the watermark: a request that is still running must know its newest route.
    if (entry.answered) {
      decision.verdict = Verdict::kAnswered;
      decision.answer = entry.answer;
    } else if (route.attempt < entry.route.attempt) {
      // Two connections deliver two attempts in any order. The caller waits on the connection of the highest
      // one.
      decision.verdict = Verdict::kStale;
    } else {
      decision.verdict = Verdict::kAttached;
      decision.before = std::exchange(entry.route, route);
    }
  } else if (request < caller.watermark) {
    // The caller has the answer, or does not want it, and the entry was dropped. Running the request would
    // run it a second time.
    caller.entries.erase(found);
    decision.verdict = Verdict::kStale;
  } else {
    entry.route = route;
  }
  return decision;
}

void Deduplicator::raise_watermark(Caller& caller, uint64_t watermark, std::vector<Route>& unwanted) {
  if (watermark <= caller.watermark) return;
  caller.watermark = watermark;
  for (auto entry = caller.entries.begin(); entry != caller.entries.end() && entry->first < watermark;) {
    auto next = std::next(entry);
    if (entry->second.answered) {
      drop(caller, entry);
    } else if (std::exchange(entry->second.wanted, false)) {
      // The request is still running. Its entry stays until end(), so that a repetition is not run beside it.
      unwanted.push_back(entry->second.route);
    }
    entry = next;
  }
}

std::optional<Deduplicator::Route> Deduplicator::end(uint64_t caller_id, uint64_t request, Answer answer,
                                                     uint64_t bytes, absl::Time now) {
  auto known = callers_.find(caller_id);
  if (known == callers_.end()) return std::nullopt;
  Caller& caller = known->second;
  auto found = caller.entries.find(request);
  if (found == caller.entries.end() || found->second.answered) return std::nullopt;
  Entry& entry = found->second;
  const Route route = entry.route;
  // An answer that is larger than the room for all answers is not kept. A repetition then runs the request
  // again, which an idempotent function allows.
  const bool keep = answer != nullptr && entry.wanted && options_.max_answers > 0 &&
                    bytes <= options_.max_answer_bytes && options_.keep_answers > absl::ZeroDuration();
  if (!keep) {
    if (answer != nullptr) dropped_.push_back(std::move(answer));
    caller.entries.erase(found);
    // The last running request of a lost caller has ended.
    if (caller.gone && caller.entries.empty()) callers_.erase(known);
    return route;
  }
  drop_expired(caller, now);
  drop_oldest(caller, [&] {
    return caller.answers >= options_.max_answers || caller.bytes + bytes > options_.max_answer_bytes;
  });
  // First what may throw.
  caller.order.push_back(request);
  entry.answered = true;
  entry.answer = std::move(answer);
  entry.bytes = bytes;
  entry.kept_until = now + options_.keep_answers;
  ++caller.answers;
  caller.bytes += bytes;
  ++answers_;
  return route;
}

void Deduplicator::drop(Caller& caller, Entries::iterator entry) {
  dropped_.push_back(std::move(entry->second.answer));
  --caller.answers;
  caller.bytes -= entry->second.bytes;
  --answers_;
  caller.entries.erase(entry);
  if (caller.answers == 0) caller.order.clear();
  // `order` still contains the requests that the watermark has dropped. Remove them when there are many, so
  // that the cost per request stays constant.
  if (caller.order.size() > 2 * caller.answers + 16) {
    std::erase_if(caller.order, [&](uint64_t request) {
      auto found = caller.entries.find(request);
      return found == caller.entries.end() || !found->second.answered;
    });
  }
}

template <class Excess>
void Deduplicator::drop_oldest(Caller& caller, Excess excess) {
  while (!caller.order.empty()) {
    auto oldest = caller.entries.find(caller.order.front());
    // The watermark has dropped this answer already.
    if (oldest == caller.entries.end() || !oldest->second.answered) {
      caller.order.pop_front();
      continue;
    }
    if (!excess()) return;
    // Popped before drop(), which may remove ids from `order`.
    caller.order.pop_front();
    drop(caller, oldest);
  }
}

void Deduplicator::drop_expired(Caller& caller, absl::Time now) {
  // drop_oldest() calls this only while the front of `order` is an answer that is kept, so find() succeeds.
  drop_oldest(caller, [&] { return caller.entries.find(caller.order.front())->second.kept_until <= now; });
}

void Deduplicator::drop_answers(Caller& caller) {
  drop_oldest(caller, [] { return true; });
}

std::vector<Deduplicator::Route> Deduplicator::forget(uint64_t caller_id) {
  std::vector<Route> unwanted;
  gone_.insert(caller_id);
  auto known = callers_.find(caller_id);
  if (known == callers_.end()) return unwanted;
  Caller& caller = known->second;
  drop_answers(caller);
  for (auto& [request, entry] : caller.entries) {
    // The entries of running requests stay: end() needs their routes, and removes them.
    if (std::exchange(entry.wanted, false)) unwanted.push_back(entry.route);
  }
  caller.gone = true;
  if (caller.entries.empty()) callers_.erase(known);
  return unwanted;
}

void Deduplicator::clear() {
  for (auto& [id, caller] : callers_) drop_answers(caller);
}

absl::Time Deduplicator::expire(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  for (auto& [id, caller] : callers_) {
    drop_expired(caller, now);
    // `order` is sorted by expiry, and drop_expired() has left an answer in front that has not expired.
    if (!caller.order.empty())
      next = std::min(next, caller.entries.find(caller.order.front())->second.kept_until);
  }
  return next;
}

std::size_t Deduplicator::running() const {
  std::size_t running = 0;
  for (const auto& [id, caller] : callers_) running += caller.entries.size() - caller.answers;
  return running;
}

std::size_t Deduplicator::remembered() const {
  std::size_t remembered = 0;
  for (const auto& [id, caller] : callers_) remembered += caller.order.size();
  return remembered;
}

uint64_t Deduplicator::bytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, caller] : callers_) bytes += caller.bytes;
  return bytes;
}

}  // namespace gradwire::rpc
