#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/memory/store_table.h"

namespace gradwire::store {

// A StoreTable that the threads of one process share: a HashStore and its clones. Thread-safe.
class SharedTable {
 public:
  // `clock` must outlive the table.
  explicit SharedTable(Clock& clock) : clock_(clock) {}

  // Runs `call`, which may use the table, and wakes the calls that it satisfied.
  void run(absl::FunctionRef<void(StoreTable& table, StoreTable::Wakeups& wakeups)> call);

  struct Waited {
    // The value that the waiter was woken with, if any.
    StoreTable::Value value;
    // The keys that were missing at the deadline; empty if the waiter was satisfied.
    std::vector<std::string> missing;
  };
  // Runs `begin`, which may register the waiter `id`. If it returns true, it has registered none. Else blocks
  // until the waiter is woken or until the deadline. After a wake-up `end` runs with the table still locked;
  // if it returns false, the whole wait begins again.
  Waited wait(absl::FunctionRef<bool(StoreTable& table, uint64_t id, Waited& waited)> begin,
              absl::FunctionRef<bool(StoreTable& table)> end, absl::Time deadline);

  // Number of calls that are waiting now.
  std::size_t waiting();

 private:
  // A waiting call. The object is on the caller's stack and is guarded by mutex_.
  struct Sleeper {
    CondVar woken;
    bool done = false;
    StoreTable::Value value;
  };
  void wake_locked(const StoreTable::Wakeups& wakeups) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Blocks until woken or until the deadline. Returns the keys that are then missing.
  std::vector<std::string> sleep_locked(uint64_t id, Sleeper& sleeper, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Clock& clock_;

  Mutex mutex_;
  StoreTable table_ ABSL_GUARDED_BY(mutex_);
  HashMap<uint64_t, Sleeper*> sleepers_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_waiter_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace gradwire::store
