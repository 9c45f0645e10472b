#include "gradwire/store/memory/store_waiters.h"

#include <utility>

namespace gradwire::store {

void StoreWaiters::add(uint64_t id, Waiter waiter) {
  for (const std::string& name : waiter.names) by_name_[name].insert(id);
  waiters_.emplace(id, std::move(waiter));
}

std::optional<StoreWaiters::Waiter> StoreWaiters::remove(uint64_t id) {
  auto found = waiters_.find(id);
  if (found == waiters_.end()) return std::nullopt;
  Waiter waiter = std::move(found->second);
  waiters_.erase(found);
  for (const std::string& name : waiter.names) {
    auto waiting = by_name_.find(name);
    waiting->second.erase(id);
    if (waiting->second.empty()) by_name_.erase(waiting);
  }
  return waiter;
}

// A watch is satisfied by any value other than its last one. A wait counts its missing names, so only a name
// that did not exist before makes a difference.
void StoreWaiters::on_value(absl::string_view key, bool created, const Value& value, Wakeups& wakeups) {
  auto waiting = by_name_.find(key);
  if (waiting == by_name_.end()) return;
  const std::size_t first = wakeups.size();
  for (uint64_t id : waiting->second) {
    Waiter& waiter = waiters_.at(id);
    switch (waiter.kind) {
      case Kind::kWait:
        if (created && --waiter.missing == 0) wakeups.push_back({id, nullptr});
        break;
      case Kind::kInTurn:
        wakeups.push_back({id, nullptr});
        break;
      case Kind::kWatch:
        if (waiter.last_value != *value) wakeups.push_back({id, value});
        break;
      case Kind::kPop:
        break;
    }
  }
  for (std::size_t i = first; i < wakeups.size(); ++i) remove(wakeups[i].waiter);
}

void StoreWaiters::on_item(absl::string_view queue, bool created, Wakeups& wakeups) {
  auto waiting = by_name_.find(queue);
  if (waiting == by_name_.end()) return;
  const std::size_t first = wakeups.size();
  bool turn = true;
  for (uint64_t id : waiting->second) {
    Waiter& waiter = waiters_.at(id);
    const bool woken = waiter.kind == Kind::kWait     ? created && --waiter.missing == 0
                       : waiter.kind == Kind::kInTurn ? std::exchange(turn, false)
                                                      : false;
    if (woken) wakeups.push_back({id, nullptr});
  }
  for (std::size_t i = first; i < wakeups.size(); ++i) remove(wakeups[i].waiter);
}

// A wait needs all its names at one moment, so this name is missing for it again.
void StoreWaiters::on_gone(absl::string_view name) {
  auto waiting = by_name_.find(name);
  if (waiting == by_name_.end()) return;
  for (uint64_t id : waiting->second) {
    if (Waiter& waiter = waiters_.at(id); waiter.kind == Kind::kWait) ++waiter.missing;
  }
}

bool StoreWaiters::give(absl::string_view queue, const Value& item, Wakeups& wakeups) {
  auto waiting = by_name_.find(queue);
  if (waiting == by_name_.end()) return false;
  for (uint64_t id : waiting->second) {
    if (waiters_.at(id).kind != Kind::kPop) continue;
    wakeups.push_back({id, item});
    remove(id);
    return true;
  }
  return false;
}

}  // namespace gradwire::store
