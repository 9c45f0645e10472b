#include "gradwire/rpc/caller/pending_calls.h"

#include <algorithm>
#include <utility>

#include "gradwire/rpc/link/link.h"

// A Cancel must not arrive before its request: the callee would ignore it, and run the call to its end. But
// another thread may cancel a call, or find it expired, while its request is being sent. So the sending
// thread has the call to itself for that time:
//   1. add() or attach() enters the call with `sending` set.
//   2. give_up() only stores its reason in such a call. take_expired() leaves it in the table.
//   3. sent() clears `sending`. If a reason was stored, it takes the call, and the sending thread sends the
//      Cancel behind the request.
// An answer, the end of the link, the loss of the worker, and shutdown send no Cancel, so they take the call
// at any time.
namespace gradwire::rpc {

absl::Time PendingCalls::add(uint64_t id, Taken call) {
  const absl::Time deadline = call->deadline;
  MutexLock lock(mutex_);
  if (calls_.emplace(id, std::move(call)).second) unfinished_.fetch_add(1);
  // The alarm that is scheduled comes early enough. When it comes, take_expired() finds the time of the next
  // one.
  if (deadline >= alarm_) return absl::InfiniteFuture();
  alarm_ = deadline;
  return deadline;
}

PendingCalls::Taken PendingCalls::sent(uint64_t id, uint64_t ticket) {
  MutexLock lock(mutex_);
  auto found = calls_.find(id);
  // The call has ended while its request was being sent. Its ticket is not needed any more.
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
  // A Cancel must be sent after the request, so leave it to the sending thread. The first reason wins.
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
  // First what may throw.
  broken.calls.reserve(calls_.size());
  broken.repeatable.reserve(calls_.size());
  for (auto entry = calls_.begin(); entry != calls_.end();) {
    if (entry->second->link.get() != &link) {
      ++entry;
    } else if (entry->second->repeatable != nullptr) {
      // Without a link, a later event of the same link does not find the call again.
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
  found->second->copying = false;
  return true;
}

bool PendingCalls::detach(uint64_t id, const Link& link) {
  MutexLock lock(mutex_);
  auto found = calls_.find(id);
  // If the link has changed, take_link() was faster, and its thread begins the next attempt.
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
  // First what may throw.
  taken.reserve(calls_.size());
  for (auto entry = calls_.begin(); entry != calls_.end();) {
    // The caller completes the calls after the lock is released: completing runs code of the user.
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
  // An earlier alarm has replaced this one. Without this check each replaced alarm would go through the
  // table.
  if (alarm_ != alarm && alarm_ != absl::InfiniteFuture()) return expired;
  // First what may throw.
  expired.calls.reserve(static_cast<std::size_t>(std::count_if(
      calls_.begin(), calls_.end(), [&](const auto& entry) { return entry.second->deadline <= now; })));
  for (auto entry = calls_.begin(); entry != calls_.end();) {
    if (entry->second->deadline <= now && entry->second->sending) {
      // Another thread is sending the call at this moment. Try again in 1 ms.
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
  // A timer for the old alarm that still comes finds another value here, and does nothing.
  alarm_ = expired.next;
  return expired;
}

void PendingCalls::lose_alarm(absl::Time alarm) {
  MutexLock lock(mutex_);
  if (alarm_ == alarm) alarm_ = absl::InfiniteFuture();
}

std::string PendingCalls::callee(uint64_t id, uint64_t incarnation) const {
  MutexLock lock(mutex_);
  const auto call = calls_.find(id);
  return call == calls_.end() || call->second->incarnation != incarnation ? "" : call->second->callee;
}

bool PendingCalls::contains(uint64_t id) const {
  MutexLock lock(mutex_);
  return calls_.contains(id);
}

std::vector<CallReport> PendingCalls::waiting(bool services) const {
  std::vector<CallReport> waiting;
  // First, because a call that gets its credit meanwhile enters the table: it may be found twice, but not
  // never. The last report counts.
  credit_waits_.append_to(waiting);
  MutexLock lock(mutex_);
  for (const auto& [id, call] : calls_) {
    // Only calls of users have `done`. Services have `answered`.
    if (!call->done && !services) continue;
    const CallState state = call->copying           ? CallState::kCopying
                            : call->link == nullptr ? CallState::kBetweenAttempts
                                                    : CallState::kSent;
    waiting.push_back({.identity = {self_, id},
                       .parent = call->parent,
                       .callee = call->callee,
                       .peer = call->incarnation,
                       .since = call->started,
                       .deadline = call->deadline,
                       .state = state,
                       .is_service = !call->done,
                       .stream_of = call->stream_of == nullptr ? "" : *call->stream_of});
  }
  return waiting;
}

std::size_t PendingCalls::size() const {
  MutexLock lock(mutex_);
  return calls_.size();
}

}  // namespace gradwire::rpc
