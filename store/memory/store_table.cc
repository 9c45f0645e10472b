#include "gradwire/store/memory/store_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::store {

// Counts the bytes that the key takes now as free, since the new value replaces them.
absl::Status StoreTable::check_room(absl::string_view key, std::size_t value_bytes) const {
  auto found = values_.find(key);
  const std::size_t held = found == values_.end() ? 0 : key.size() + found->second->size();
  if (bytes_ - held + key.size() + value_bytes <= max_bytes_) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the store holds ", bytes_, " of at most ", max_bytes_,
                                                   " bytes: no room for ", value_bytes, " bytes more"));
}

// The value is shared with the answers to the watches, so that many of them need only one copy.
void StoreTable::put(absl::string_view key, std::string value, Wakeups& wakeups) {
  auto shared = std::make_shared<const std::string>(std::move(value));
  auto found = values_.find(key);
  const bool created = found == values_.end();
  if (created) {
    bytes_ += key.size() + shared->size();
    values_.emplace(std::string(key), shared);
  } else {
    bytes_ = bytes_ - found->second->size() + shared->size();
    found->second = shared;
  }

  // Finds the satisfied waiters. A watch is satisfied by any value other than its last one. A wait counts
  // its missing keys, so only a key that did not exist before makes a difference.
  auto waiting = by_key_.find(key);
  if (waiting == by_key_.end()) return;
  std::vector<uint64_t> satisfied;
  for (uint64_t id : waiting->second) {
    Waiter& waiter = waiters_.at(id);
    if (waiter.watches ? waiter.last_value != *shared : created && --waiter.missing == 0)
      satisfied.push_back(id);
  }
  // Wake the oldest waiter first: the order of a hash set is arbitrary, and runs must be repeatable.
  std::sort(satisfied.begin(), satisfied.end());
  for (uint64_t id : satisfied) {
    auto entry = waiters_.find(id);
    wakeups.push_back({id, entry->second.watches ? shared : nullptr});
    // A satisfied waiter leaves the table at once: each waiter is woken only once.
    unindex(id, entry->second);
    waiters_.erase(entry);
  }
}

absl::Status StoreTable::set(absl::string_view key, absl::string_view value, Wakeups& wakeups) {
  GRADWIRE_RETURN_IF_ERROR(check_room(key, value.size()));
  put(key, std::string(value), wakeups);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> StoreTable::add(absl::string_view key, int64_t n, Wakeups& wakeups) {
  int64_t current = 0;
  if (const Value value = find(key); value != nullptr && !absl::SimpleAtoi(*value, &current)) {
    return absl::InvalidArgumentError(absl::StrCat("add to store key \"",
                                                   absl::CHexEscape(key.substr(0, 128)), "\": its value of ",
                                                   value->size(), " bytes is not a decimal number"));
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(current, n, &sum)) {
    return absl::InvalidArgumentError(absl::StrCat("add to store key \"",
                                                   absl::CHexEscape(key.substr(0, 128)), "\": ", current,
                                                   " + ", n, " does not fit 64 bits"));
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
  // A wait needs all its keys at one moment, so this key is missing for it again.
  if (auto waiting = by_key_.find(key); waiting != by_key_.end()) {
    for (uint64_t id : waiting->second) {
      if (Waiter& waiter = waiters_.at(id); !waiter.watches) ++waiter.missing;
    }
  }
  return true;
}

StoreTable::Value StoreTable::find(absl::string_view key) const {
  auto found = values_.find(key);
  return found == values_.end() ? nullptr : found->second;
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

std::vector<std::string> StoreTable::missing(const std::vector<std::string>& keys) const {
  std::vector<std::string> result;
  for (const std::string& key : keys) {
    if (!values_.contains(key)) result.push_back(key);
  }
  return result;
}

StoreTable::Value StoreTable::find_other(absl::string_view key,
                                         std::optional<absl::string_view> last_value) const {
  Value value = find(key);
  return value != nullptr && last_value != *value ? value : nullptr;
}

bool StoreTable::wait(uint64_t waiter, const std::vector<std::string>& keys) {
  std::vector<std::string> unique = keys;
  // A key that is named twice must count once as missing, because it is created once.
  std::sort(unique.begin(), unique.end());
  unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
  const std::size_t missing_keys = missing(unique).size();
  if (missing_keys == 0) return true;
  Waiter entry{
      .keys = std::move(unique), .watches = false, .last_value = std::nullopt, .missing = missing_keys};
  index(waiter, entry);
  waiters_.emplace(waiter, std::move(entry));
  return false;
}

StoreTable::Value StoreTable::watch(uint64_t waiter, absl::string_view key,
                                    std::optional<absl::string_view> last_value) {
  if (Value value = find_other(key, last_value); value != nullptr) return value;
  Waiter entry{.keys = {std::string(key)}, .watches = true, .last_value = std::nullopt, .missing = 0};
  if (last_value.has_value()) entry.last_value.emplace(*last_value);
  index(waiter, entry);
  waiters_.emplace(waiter, std::move(entry));
  return nullptr;
}

std::vector<std::string> StoreTable::drop(uint64_t waiter) {
  auto found = waiters_.find(waiter);
  if (found == waiters_.end()) return {};
  unindex(waiter, found->second);
  // For a watch its key, whose value has not changed; for a wait the keys that do not exist now.
  Waiter entry = std::move(found->second);
  waiters_.erase(found);
  return entry.watches ? std::move(entry.keys) : missing(entry.keys);
}

void StoreTable::index(uint64_t waiter, const Waiter& entry) {
  for (const std::string& key : entry.keys) by_key_[key].insert(waiter);
}

void StoreTable::unindex(uint64_t waiter, const Waiter& entry) {
  for (const std::string& key : entry.keys) {
    auto found = by_key_.find(key);
    found->second.erase(waiter);
    if (found->second.empty()) by_key_.erase(found);
  }
}

}  // namespace gradwire::store
