#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/memory/store_table.h"
#include "gradwire/store/store.h"

namespace gradwire::store {

// A store within one process: for several agents in one program, and for tests.
class HashStore : public Store {
 public:
  // An empty table. `clock` must outlive the store.
  explicit HashStore(absl::Duration timeout = kDefaultTimeout, Clock& clock = Clock::system());

  std::string description() const override { return "HashStore"; }
  // Calls that wait for a key at this moment.
  std::size_t waiting() {
    MutexLock lock(mutex_);
    return sleepers_.size();
  }

 private:
  // A call that waits; it lives on its caller's stack and is guarded by mutex_.
  struct Sleeper {
    CondVar woken;
    bool done = false;
    StoreTable::Value value;
  };

  absl::Status do_set(absl::string_view key, absl::string_view value, absl::Time deadline) override;
  absl::StatusOr<int64_t> do_add(absl::string_view key, int64_t n, absl::Time deadline) override;
  absl::StatusOr<std::string> do_compare_set(absl::string_view key, absl::string_view expected,
                                             absl::string_view desired, absl::Time deadline) override;
  absl::StatusOr<bool> do_delete_key(absl::string_view key, absl::Time deadline) override;
  absl::StatusOr<int64_t> do_num_keys(absl::string_view prefix, absl::Time deadline) override;
  absl::StatusOr<std::vector<std::string>> do_wait(const std::vector<std::string>& keys,
                                                   absl::Time deadline) override;
  absl::StatusOr<std::optional<std::string>> do_watch(absl::string_view key,
                                                      std::optional<absl::string_view> last_value,
                                                      absl::Time deadline) override;

  void wake_locked(const StoreTable::Wakeups& wakeups) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Until woken or the deadline; returns the keys that were missing then.
  std::vector<std::string> sleep_locked(uint64_t id, Sleeper& sleeper, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  StoreTable table_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Sleeper*> sleepers_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_waiter_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace gradwire::store
