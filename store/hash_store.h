#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/memory/store_table.h"
#include "gradwire/store/store.h"

namespace gradwire::store {

// A store in the memory of one process: for several agents in one program, and for tests.
class HashStore : public Store {
 public:
  // Creates an empty table. `clock` must outlive the store.
  explicit HashStore(absl::Duration timeout = kDefaultTimeout, Clock& clock = Clock::system());

  std::string description() const override { return "HashStore"; }
  // Number of calls that are waiting for a key now.
  std::size_t waiting() {
    MutexLock lock(mutex_);
    return sleepers_.size();
  }

 private:
  // A waiting call. The object is on the caller's stack and is guarded by mutex_.
  struct Sleeper {
    CondVar woken;
    bool done = false;
    StoreTable::Value value;
  };

  GRADWIRE_STORE_OPERATIONS_;

  void wake_locked(const StoreTable::Wakeups& wakeups) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Blocks until woken or until the deadline. Returns the keys that are then missing.
  std::vector<std::string> sleep_locked(uint64_t id, Sleeper& sleeper, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  StoreTable table_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Sleeper*> sleepers_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_waiter_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace gradwire::store
