// All waiting threads share one table. A thread that waits registers a Sleeper, which is on its stack,
// under the id of its waiter in the table. A change asks the table which waiters it satisfies and wakes
// their threads.

#include "gradwire/store/memory/shared_table.h"

namespace gradwire::store {

void SharedTable::wake_locked(const StoreTable::Wakeups& wakeups) {
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
std::vector<std::string> SharedTable::sleep_locked(uint64_t id, Sleeper& sleeper, absl::Time deadline) {
  sleepers_.emplace(id, &sleeper);
  while (!sleeper.done && clock_.now() < deadline) clock_.wait_until(mutex_, sleeper.woken, deadline);
  if (sleeper.done) return {};
  sleepers_.erase(id);
  return table_.drop(id);
}

void SharedTable::run(absl::FunctionRef<void(StoreTable& table, StoreTable::Wakeups& wakeups)> call) {
  StoreTable::Wakeups wakeups;
  MutexLock lock(mutex_);
  call(table_, wakeups);
  // Also if the change failed: then there are no wakeups.
  wake_locked(wakeups);
}

SharedTable::Waited SharedTable::wait(
    absl::FunctionRef<bool(StoreTable& table, uint64_t id, Waited& waited)> begin,
    absl::FunctionRef<bool(StoreTable& table)> end, absl::Time deadline) {
  while (true) {
    Waited waited;
    Sleeper sleeper;
    MutexLock lock(mutex_);
    const uint64_t id = next_waiter_++;
    if (begin(table_, id, waited)) return waited;
    waited.missing = sleep_locked(id, sleeper, deadline);
    waited.value = sleeper.value;
    if (!sleeper.done || end(table_)) return waited;
  }
}

std::size_t SharedTable::waiting() {
  MutexLock lock(mutex_);
  return sleepers_.size();
}

}  // namespace gradwire::store
