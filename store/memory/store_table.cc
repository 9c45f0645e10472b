#include "gradwire/store/memory/store_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/interface/quoted_key.h"

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

namespace {

// Checks that `more` bytes fit beside `bytes`.
absl::Status check_more(std::size_t bytes, std::size_t max_bytes, std::size_t more) {
  if (bytes + more <= max_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the store holds ", bytes, " of at most ", max_bytes,
                                                   " bytes: no room for ", more, " bytes more"));
}

}  // namespace

// Counts the bytes that the key takes now as free, since the new value replaces them.
absl::Status StoreTable::check_room(absl::string_view key, std::size_t value_bytes) const {
  auto found = values_.find(key);
  if (found == values_.end()) return check_more(bytes_, max_bytes_, key.size() + value_bytes);
  if (value_bytes <= found->second->size()) return absl::OkStatus();
  return check_more(bytes_, max_bytes_, value_bytes - found->second->size());
}

// The value is shared with the answers to the watches, so that many of them need only one copy.
void StoreTable::put(absl::string_view key, std::string value, Wakeups& wakeups) {
  auto shared = std::make_shared<const std::string>(std::move(value));
  auto found = values_.find(key);
  const bool created = found == values_.end() && !queues_.contains(key);
  if (found == values_.end()) {
    bytes_ += key.size() + shared->size();
    values_.emplace(std::string(key), shared);
  } else {
    bytes_ = bytes_ - found->second->size() + shared->size();
    found->second = shared;
  }
  waiters_.on_value(key, created, shared, wakeups);
}

absl::Status StoreTable::set(absl::string_view key, absl::string_view value, Wakeups& wakeups) {
  GRADWIRE_RETURN_IF_ERROR(check_room(key, value.size()));
  put(key, std::string(value), wakeups);
  return absl::OkStatus();
}

// A key that is named twice gets only its last value, so that no watch sees the other one.
absl::Status StoreTable::set_all(absl::Span<const Entry> entries, Wakeups& wakeups) {
  HashMap<absl::string_view, absl::string_view> last;
  for (const auto& [key, value] : entries) last[key] = value;
  std::size_t added = 0;
  for (const auto& [key, value] : last) added += key.size() + value.size();
  GRADWIRE_RETURN_IF_ERROR(check_more(bytes_, max_bytes_, added));
  for (const auto& entry : entries) {
    // In the order of the entries, so that runs are repeatable.
    if (auto found = last.extract(entry.first)) put(found.key(), std::string(found.mapped()), wakeups);
  }
  return absl::OkStatus();
}

absl::Status StoreTable::append(absl::string_view key, absl::string_view value, Wakeups& wakeups) {
  const Value current = find(key);
  if (current == nullptr) return set(key, value, wakeups);
  if (current->size() + value.size() > kMaxValueBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("append to store key ", quoted_key(key), ": a value of ",
                                                     current->size() + value.size(),
                                                     " bytes is over the limit of ", kMaxValueBytes));
  }
  GRADWIRE_RETURN_IF_ERROR(check_more(bytes_, max_bytes_, value.size()));
  put(key, absl::StrCat(*current, value), wakeups);
  return absl::OkStatus();
}

// A pop that waits gets the item at once. The queue stays empty, so no wait is satisfied.
absl::Status StoreTable::push(absl::string_view queue, absl::string_view value, Wakeups& wakeups) {
  Value item = std::make_shared<const std::string>(value);
  if (waiters_.give(queue, item, wakeups)) return absl::OkStatus();
  auto found = queues_.find(queue);
  const bool first = found == queues_.end();
  const std::size_t added = kQueueItemBytes + value.size() + (first ? queue.size() : 0);
  GRADWIRE_RETURN_IF_ERROR(check_more(bytes_, max_bytes_, added));
  bytes_ += added;
  if (first) found = queues_.emplace(std::string(queue), Queue()).first;
  found->second.push_back(std::move(item));
  waiters_.on_item(queue, first && !values_.contains(queue), wakeups);
  return absl::OkStatus();
}

StoreTable::Value StoreTable::pop(absl::string_view queue) {
  auto found = queues_.find(queue);
  if (found == queues_.end()) return nullptr;
  Value item = std::move(found->second.front());
  found->second.pop_front();
  bytes_ -= kQueueItemBytes + item->size();
  if (found->second.empty()) {
    bytes_ -= queue.size();
    queues_.erase(found);
    if (!values_.contains(queue)) waiters_.on_gone(queue);
  }
  return item;
}

absl::StatusOr<int64_t> StoreTable::add(absl::string_view key, int64_t n, Wakeups& wakeups) {
  int64_t current = 0;
  if (const Value value = find(key); value != nullptr && !absl::SimpleAtoi(*value, &current)) {
    return absl::InvalidArgumentError(absl::StrCat("add to store key ", quoted_key(key), ": its value of ",
                                                   value->size(), " bytes is not a decimal number"));
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(current, n, &sum)) {
    return absl::InvalidArgumentError(
        absl::StrCat("add to store key ", quoted_key(key), ": ", current, " + ", n, " does not fit 64 bits"));
  }
  std::string text = absl::StrCat(sum);
  GRADWIRE_RETURN_IF_ERROR(check_room(key, text.size()));
  put(key, std::move(text), wakeups);
  return sum;
}

absl::StatusOr<std::string> StoreTable::compare_set(absl::string_view key, absl::string_view expected,
                                                    absl::string_view desired, Wakeups& wakeups) {
  const Value current = find(key);
  // A missing key equals the empty value.
  const bool matches = current == nullptr ? expected.empty() : *current == expected;
  if (!matches) return current == nullptr ? std::string(expected) : *current;
  GRADWIRE_RETURN_IF_ERROR(set(key, desired, wakeups));
  return std::string(desired);
}

bool StoreTable::erase(absl::string_view key) {
  auto found = values_.find(key);
  if (found == values_.end()) return false;
  bytes_ -= key.size() + found->second->size();
  values_.erase(found);
  if (!queues_.contains(key)) waiters_.on_gone(key);
  return true;
}

StoreTable::Value StoreTable::find(absl::string_view key, std::optional<absl::string_view> last_value) const {
  auto found = values_.find(key);
  return found == values_.end() || last_value == *found->second ? nullptr : found->second;
}

int64_t StoreTable::num_keys(absl::string_view prefix) const {
  if (prefix.empty()) return static_cast<int64_t>(values_.size());
  int64_t count = 0;
  for (auto it = values_.lower_bound(prefix); it != values_.end() && absl::StartsWith(it->first, prefix);
       ++it) {
    ++count;
  }
  return count;
}

absl::StatusOr<std::vector<std::string>> StoreTable::list_keys(absl::string_view prefix) const {
  std::vector<std::string> keys;
  std::size_t bytes = 0;
  for (auto it = values_.lower_bound(prefix); it != values_.end() && absl::StartsWith(it->first, prefix);
       ++it) {
    bytes += it->first.size() + kListedKeyBytes;
    if (bytes > kMaxListBytes) {
      return absl::ResourceExhaustedError(absl::StrCat("the names of the keys under ", quoted_key(prefix),
                                                       " take more than the limit of ", kMaxListBytes,
                                                       " bytes; list them under longer prefixes"));
    }
    keys.push_back(it->first);
  }
  return keys;
}

int64_t StoreTable::queue_len(absl::string_view queue) const {
  auto found = queues_.find(queue);
  return found == queues_.end() ? 0 : static_cast<int64_t>(found->second.size());
}

StoreTable::Value StoreTable::front(absl::string_view queue) const {
  auto found = queues_.find(queue);
  return found == queues_.end() ? nullptr : found->second.front();
}

absl::StatusOr<std::vector<StoreTable::Value>> StoreTable::find_all(
    const std::vector<std::string>& keys) const {
  std::vector<Value> values;
  values.reserve(keys.size());
  std::size_t bytes = 0;
  for (const std::string& key : keys) {
    Value value = find(key);
    bytes += value == nullptr ? 0 : value->size();
    if (bytes > kMaxMultiBytes) {
      return absl::ResourceExhaustedError(absl::StrCat("the values of these ", keys.size(),
                                                       " keys take more than the limit of ", kMaxMultiBytes,
                                                       " bytes; get fewer keys at once"));
    }
    values.push_back(std::move(value));
  }
  return values;
}

std::vector<std::string> copies_of(const std::vector<StoreTable::Value>& values) {
  std::vector<std::string> copies;
  copies.reserve(values.size());
  for (const StoreTable::Value& value : values) copies.push_back(value == nullptr ? std::string() : *value);
  return copies;
}

std::vector<std::string> StoreTable::missing(const std::vector<std::string>& keys) const {
  std::vector<std::string> result;
  for (const std::string& key : keys) {
    if (!exists(key)) result.push_back(key);
  }
  return result;
}

bool StoreTable::wait(uint64_t waiter, const std::vector<std::string>& keys, bool in_turn) {
  std::vector<std::string> unique = keys;
  // A key that is named twice must count once as missing, because it is created once.
  std::sort(unique.begin(), unique.end());
  unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
  const std::size_t missing_keys = missing(unique).size();
  if (missing_keys == 0) return true;
  waiters_.add(waiter, {.names = std::move(unique),
                        .kind = in_turn ? StoreWaiters::Kind::kInTurn : StoreWaiters::Kind::kWait,
                        .last_value = std::nullopt,
                        .missing = missing_keys});
  return false;
}

StoreTable::Value StoreTable::watch(uint64_t waiter, absl::string_view key,
                                    std::optional<absl::string_view> last_value) {
  if (Value value = find(key, last_value); value != nullptr) return value;
  StoreWaiters::Waiter entry{.names = {std::string(key)},
                             .kind = StoreWaiters::Kind::kWatch,
                             .last_value = std::nullopt,
                             .missing = 0};
  if (last_value.has_value()) entry.last_value.emplace(*last_value);
  waiters_.add(waiter, std::move(entry));
  return nullptr;
}

StoreTable::Value StoreTable::wait_for_item(uint64_t waiter, absl::string_view queue) {
  if (Value item = pop(queue); item != nullptr) return item;
  waiters_.add(waiter, {.names = {std::string(queue)},
                        .kind = StoreWaiters::Kind::kPop,
                        .last_value = std::nullopt,
                        .missing = 0});
  return nullptr;
}

StoreTable::Wakeups StoreTable::end_turn(uint64_t waiter) {
  Wakeups wakeups;
  const std::optional<std::string> queue = waiters_.end_turn(waiter);
  if (queue.has_value()) {
    waiters_.give_turns(*queue, static_cast<std::size_t>(queue_len(*queue)), wakeups);
  }
  return wakeups;
}

// For a wait the keys that do not exist now; else its key, because that is what it waits for.
std::vector<std::string> StoreTable::drop(uint64_t waiter) {
  std::optional<StoreWaiters::Waiter> entry = waiters_.remove(waiter);
  if (!entry.has_value()) return {};
  return entry->kind == StoreWaiters::Kind::kWait ? missing(entry->names) : std::move(entry->names);
}

}  // namespace gradwire::store
