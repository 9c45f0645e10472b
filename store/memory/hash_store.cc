// All waiting threads share one table. A thread that waits registers a Sleeper, which is on its stack,
// under the id of its waiter in the table. A change asks the table which waiters it satisfies and wakes
// their threads.

#include "gradwire/store/hash_store.h"

namespace gradwire::store {

HashStore::HashStore(absl::Duration timeout, Clock& clock) : Store(timeout, clock) {}

void HashStore::wake_locked(const StoreTable::Wakeups& wakeups) {
  for (const StoreTable::Wakeup& wakeup : wakeups) {
    auto found = sleepers_.find(wakeup.waiter);
    // It is on the stack of the waiting thread, which cannot return while this thread holds the lock.
    Sleeper& sleeper = *found->second;
    sleepers_.erase(found);
    sleeper.value = wakeup.value;
    sleeper.done = true;
    // Notify while the lock is held: the sleeper's stack frame may be gone as soon as the lock is released.
    sleeper.woken.notify_all();
  }
}

// Returns the missing keys after a timeout; nothing after a wake-up. A thread that was woken just when its
// time ended counts as woken: wake_locked() has removed its waiter already.
std::vector<std::string> HashStore::sleep_locked(uint64_t id, Sleeper& sleeper, absl::Time deadline) {
  sleepers_.emplace(id, &sleeper);
  while (!sleeper.done && clock().now() < deadline) clock().wait_until(mutex_, sleeper.woken, deadline);
  if (sleeper.done) return {};
  sleepers_.erase(id);
  return table_.drop(id);
}

absl::Status HashStore::do_set(absl::string_view key, absl::string_view value, absl::Time) {
  StoreTable::Wakeups wakeups;
  MutexLock lock(mutex_);
  absl::Status status = table_.set(key, value, wakeups);
  // Also if the change failed: then there are no wakeups.
  wake_locked(wakeups);
  return status;
}

absl::StatusOr<int64_t> HashStore::do_add(absl::string_view key, int64_t n, absl::Time) {
  StoreTable::Wakeups wakeups;
  MutexLock lock(mutex_);
  absl::StatusOr<int64_t> sum = table_.add(key, n, wakeups);
  wake_locked(wakeups);
  return sum;
}

absl::StatusOr<std::string> HashStore::do_compare_set(absl::string_view key, absl::string_view expected,
                                                      absl::string_view desired, absl::Time) {
  StoreTable::Wakeups wakeups;
  MutexLock lock(mutex_);
  absl::StatusOr<std::string> current = table_.compare_set(key, expected, desired, wakeups);
  wake_locked(wakeups);
  return current;
}

absl::StatusOr<bool> HashStore::do_delete_key(absl::string_view key, absl::Time) {
  MutexLock lock(mutex_);
  return table_.erase(key);
}

absl::StatusOr<int64_t> HashStore::do_num_keys(absl::string_view prefix, absl::Time) {
  MutexLock lock(mutex_);
  return table_.num_keys(prefix);
}

absl::StatusOr<std::vector<std::string>> HashStore::do_wait(const std::vector<std::string>& keys,
                                                            absl::Time deadline) {
  Sleeper sleeper;
  MutexLock lock(mutex_);
  const uint64_t id = next_waiter_++;
  if (table_.wait(id, keys)) return std::vector<std::string>();
  return sleep_locked(id, sleeper, deadline);
}

absl::StatusOr<std::optional<std::string>> HashStore::do_watch(absl::string_view key,
                                                               std::optional<absl::string_view> last_value,
                                                               absl::Time deadline) {
  Sleeper sleeper;
  StoreTable::Value value;
  {
    MutexLock lock(mutex_);
    const uint64_t id = next_waiter_++;
    value = table_.watch(id, key, last_value);
    if (value == nullptr) {
      sleep_locked(id, sleeper, deadline);
      value = sleeper.value;
    }
  }
  if (value == nullptr) return std::optional<std::string>();
  return std::optional<std::string>(*value);
}

}  // namespace gradwire::store
