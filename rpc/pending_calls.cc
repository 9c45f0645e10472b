#include "rpc/pending_calls.h"

namespace gradwire::rpc {

uint64_t PendingCalls::next_id() {
  MutexLock lock(mutex_);
  return next_id_++;
}

void PendingCalls::add(uint64_t id, PendingCall call) {
  MutexLock lock(mutex_);
  if (calls_.emplace(id, std::move(call)).second) ++unfinished_;
}

bool PendingCalls::set_sent(uint64_t id, uint64_t link, uint64_t ticket) {
  MutexLock lock(mutex_);
  auto found = calls_.find(id);
  if (found == calls_.end()) return false;
  found->second.link = link;
  found->second.ticket = ticket;
  return true;
}

void PendingCalls::set_timer(uint64_t id, uint64_t timer) {
  MutexLock lock(mutex_);
  auto found = calls_.find(id);
  if (found != calls_.end()) found->second.timer = timer;
}

absl::optional<PendingCall> PendingCalls::take(uint64_t id) {
  MutexLock lock(mutex_);
  auto found = calls_.find(id);
  if (found == calls_.end()) return absl::nullopt;
  PendingCall call = std::move(found->second);
  calls_.erase(found);
  return call;
}

absl::optional<PendingCall> PendingCalls::take_from(uint64_t id, uint64_t incarnation) {
  MutexLock lock(mutex_);
  auto found = calls_.find(id);
  if (found == calls_.end() || found->second.to.incarnation != incarnation) return absl::nullopt;
  PendingCall call = std::move(found->second);
  calls_.erase(found);
  return call;
}

std::vector<PendingCall> PendingCalls::take_link(uint64_t link) {
  std::vector<PendingCall> taken;
  MutexLock lock(mutex_);
  for (auto entry = calls_.begin(); entry != calls_.end();) {
    if (entry->second.link == link) {
      taken.push_back(std::move(entry->second));
      calls_.erase(entry++);
    } else {
      ++entry;
    }
  }
  return taken;
}

std::vector<PendingCall> PendingCalls::take_all() {
  std::vector<PendingCall> taken;
  MutexLock lock(mutex_);
  for (auto& [id, call] : calls_) taken.push_back(std::move(call));
  calls_.clear();
  return taken;
}

std::pair<uint64_t, uint64_t> PendingCalls::sent(uint64_t id) const {
  MutexLock lock(mutex_);
  auto found = calls_.find(id);
  if (found == calls_.end()) return {0, 0};
  return {found->second.link, found->second.ticket};
}

std::size_t PendingCalls::size() const {
  MutexLock lock(mutex_);
  return calls_.size();
}

void PendingCalls::finished() {
  MutexLock lock(mutex_);
  --unfinished_;
}

std::size_t PendingCalls::unfinished() const {
  MutexLock lock(mutex_);
  return unfinished_;
}

}  // namespace gradwire::rpc
