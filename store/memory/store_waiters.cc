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
    if (!woken) continue;
    wakeups.push_back({id, nullptr});
    if (waiter.kind == Kind::kInTurn) start_turn(id, queue);
  }
  for (std::size_t i = first; i < wakeups.size(); ++i) remove(wakeups[i].waiter);
}

void StoreWaiters::start_turn(uint64_t id, absl::string_view queue) {
  turns_.emplace(id, queue);
  ++turns_of_[queue];
}

std::optional<std::string> StoreWaiters::end_turn(uint64_t id) {
  auto found = turns_.find(id);
  if (found == turns_.end()) return std::nullopt;
  std::string queue = std::move(found->second);
  turns_.erase(found);
  auto number = turns_of_.find(queue);
  if (--number->second == 0) turns_of_.erase(number);
  return queue;
}

void StoreWaiters::give_turns(absl::string_view queue, std::size_t items, Wakeups& wakeups) {
  auto waiting = by_name_.find(queue);
  auto number = turns_of_.find(queue);
  if (waiting == by_name_.end()) return;
  std::vector<uint64_t> next;
  for (std::size_t turns = number == turns_of_.end() ? 0 : number->second;
       const uint64_t id : waiting->second) {
    if (turns + next.size() >= items) break;
    if (waiters_.at(id).kind == Kind::kInTurn) next.push_back(id);
  }
  for (const uint64_t id : next) {
    wakeups.push_back({id, nullptr});
    start_turn(id, queue);
    remove(id);
  }
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
