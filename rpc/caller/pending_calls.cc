#include "gradwire/rpc/caller/pending_calls.h"

#include <algorithm>
#include <utility>

namespace gradwire::rpc {

absl::Time PendingCalls::add(uint64_t id, Taken call) {
  const absl::Time deadline = call->deadline;
  MutexLock lock(mutex_);
  if (calls_.emplace(id, std::move(call)).second) unfinished_.fetch_add(1);
  if (deadline >= alarm_) return absl::InfiniteFuture();
  alarm_ = deadline;
  return deadline;
}

PendingCalls::Taken PendingCalls::sent(uint64_t id, uint64_t ticket) {
  MutexLock lock(mutex_);
  auto found = calls_.find(id);
  if (found == calls_.end()) return nullptr;
  found->second->ticket = ticket;
  found->second->sending = false;
  if (found->second->given_up.ok()) return nullptr;
  return take_locked(found);
}

PendingCalls::Taken PendingCalls::give_up(uint64_t id, const absl::Status& reason) {
  MutexLock lock(mutex_);
  auto found = calls_.find(id);
  if (found == calls_.end()) return nullptr;
  if (found->second->sending) {
    if (found->second->given_up.ok()) found->second->given_up = reason;
    return nullptr;
  }
  return take_locked(found);
}

PendingCalls::Taken PendingCalls::take(uint64_t id) {
  MutexLock lock(mutex_);
  auto found = calls_.find(id);
  if (found == calls_.end()) return nullptr;
  return take_locked(found);
}

PendingCalls::Taken PendingCalls::take_from(uint64_t id, uint64_t incarnation) {
  MutexLock lock(mutex_);
  auto found = calls_.find(id);
  if (found == calls_.end() || found->second->incarnation != incarnation) return nullptr;
  return take_locked(found);
}

PendingCalls::Broken PendingCalls::take_link(const Link& link) {
  Broken broken;
  MutexLock lock(mutex_);
  for (auto entry = calls_.begin(); entry != calls_.end();) {
    if (entry->second->link.get() != &link) {
      ++entry;
    } else if (entry->second->repeatable != nullptr) {
      entry->second->link = nullptr;
      broken.repeatable.push_back(entry->first);
      ++entry;
    } else {
      broken.calls.push_back(std::move(entry->second));
      calls_.erase(entry++);
    }
  }
  return broken;
}

std::optional<PendingCalls::Attempt> PendingCalls::attempt(uint64_t id, bool begins) {
  MutexLock lock(mutex_);
  auto found = calls_.find(id);
  if (found == calls_.end()) return std::nullopt;
  PendingCall& call = *found->second;
  if (begins) ++call.attempts;
  return Attempt{call.peer, call.repeatable, call.callee, call.deadline, call.attempts};
}

bool PendingCalls::attach(uint64_t id, const std::shared_ptr<Link>& link) {
  MutexLock lock(mutex_);
  auto found = calls_.find(id);
  if (found == calls_.end()) return false;
  found->second->link = link;
  found->second->sending = true;
  return true;
}

bool PendingCalls::detach(uint64_t id, const Link& link) {
  MutexLock lock(mutex_);
  auto found = calls_.find(id);
  if (found == calls_.end() || found->second->link.get() != &link) return false;
  found->second->link = nullptr;
  return true;
}

PendingCalls::Taken PendingCalls::take_locked(Calls::iterator call) {
  Taken taken = std::move(call->second);
  calls_.erase(call);
  return taken;
}

template <class Matches>
std::vector<PendingCalls::Taken> PendingCalls::take_where(Matches matches) {
  std::vector<Taken> taken;
  MutexLock lock(mutex_);
  for (auto entry = calls_.begin(); entry != calls_.end();) {
    if (matches(*entry->second)) {
      taken.push_back(std::move(entry->second));
      calls_.erase(entry++);
    } else {
      ++entry;
    }
  }
  return taken;
}

std::vector<PendingCalls::Taken> PendingCalls::take_worker(uint64_t incarnation) {
  return take_where([incarnation](const PendingCall& call) { return call.incarnation == incarnation; });
}

std::vector<PendingCalls::Taken> PendingCalls::take_all() {
  return take_where([](const PendingCall&) { return true; });
}

PendingCalls::Expired PendingCalls::take_expired(absl::Time alarm, absl::Time now) {
  Expired expired;
  MutexLock lock(mutex_);
  if (alarm_ != alarm) return expired;
  for (auto entry = calls_.begin(); entry != calls_.end();) {
    if (entry->second->deadline <= now && entry->second->sending) {
      // Its sender is about to be done.
      expired.next = std::min(expired.next, now + absl::Milliseconds(1));
      ++entry;
    } else if (entry->second->deadline <= now) {
      expired.calls.emplace_back(entry->first, std::move(entry->second));
      calls_.erase(entry++);
    } else {
      expired.next = std::min(expired.next, entry->second->deadline);
      ++entry;
    }
  }
  alarm_ = expired.next;
  return expired;
}

bool PendingCalls::contains(uint64_t id) const {
  MutexLock lock(mutex_);
  return calls_.contains(id);
}

std::vector<PendingCalls::Waiting> PendingCalls::waiting() const {
  std::vector<Waiting> waiting;
  MutexLock lock(mutex_);
  for (const auto& [id, call] : calls_) {
    if (call->done) waiting.push_back({call->callee, call->incarnation, call->started});
  }
  return waiting;
}

std::size_t PendingCalls::size() const {
  MutexLock lock(mutex_);
  return calls_.size();
}

}  // namespace gradwire::rpc
