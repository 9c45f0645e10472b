#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/store/memory/limits.h"

namespace gradwire::store {

// The state machine behind HashStore, FileStore and the TcpStore's server: keys, values and the waiters on
// them. It has no threads, clock or sockets: a change returns the waiters that it satisfied, and the owner
// wakes them.
//
// A waiter is identified by a number that the owner chooses; numbers of registered waiters are distinct. A
// waiter is registered while its keys are missing, and removed when a change satisfies it or when it is
// dropped.
//
// Not thread-safe; the owner guards it.
class StoreTable {
 public:
  // Shared, so that waking many waiters with one large value copies nothing.
  using Value = std::shared_ptr<const std::string>;
  struct Wakeup {
    uint64_t waiter;
    Value value;  // Null for a wait; set for a watch.
  };
  using Wakeups = std::vector<Wakeup>;

  explicit StoreTable(std::size_t max_bytes = kMaxStoreBytes) : max_bytes_(max_bytes) {}

  // Changes append the waiters that they satisfied to `wakeups`. They fail with ResourceExhausted, and change
  // nothing, if the table would hold more than max_bytes.
  absl::Status set(absl::string_view key, absl::string_view value, Wakeups& wakeups);
  // InvalidArgument if the value is not a decimal number or the sum does not fit 64 bits.
  absl::StatusOr<int64_t> add(absl::string_view key, int64_t n, Wakeups& wakeups);
  // As Store::compare_set.
  absl::StatusOr<std::string> compare_set(absl::string_view key, absl::string_view expected,
                                          absl::string_view desired, Wakeups& wakeups);
  bool erase(absl::string_view key);

  // Null if missing.
  Value find(absl::string_view key) const;
  int64_t num_keys(absl::string_view prefix = "") const;
  std::vector<std::string> missing(const std::vector<std::string>& keys) const;
  // The key's value if there is one and it differs from `last_value`.
  Value find_other(absl::string_view key, std::optional<absl::string_view> last_value) const;

  // Returns true, and registers nothing, if all keys exist. Else registers `waiter`, which is woken once all
  // keys exist.
  bool wait(uint64_t waiter, const std::vector<std::string>& keys);
  // Returns a value other than `last_value` (any value if that is nullopt) if the key has one. Else returns
  // null and registers `waiter`, which is woken with such a value.
  Value watch(uint64_t waiter, absl::string_view key, std::optional<absl::string_view> last_value);
  // Removes a waiter. Returns the keys that it still missed (the key of a watch); empty if it was not
  // registered.
  std::vector<std::string> drop(uint64_t waiter);
  std::size_t num_waiters() const { return waiters_.size(); }
  // Number of keys that registered waiters wait for.
  std::size_t num_awaited_keys() const { return by_key_.size(); }

 private:
  struct Waiter {
    std::vector<std::string> keys;  // Without duplicates.
    bool watches;                   // A watch waits for one key's value, a wait for the presence of all keys.
    std::optional<std::string> last_value;
    std::size_t missing;  // For a wait: number of its keys that do not exist.
  };

  void put(absl::string_view key, std::string value, Wakeups& wakeups);
  absl::Status check_room(absl::string_view key, std::size_t value_bytes) const;
  void index(uint64_t waiter, const Waiter& entry);
  void unindex(uint64_t waiter, const Waiter& entry);

  const std::size_t max_bytes_;

  absl::btree_map<std::string, Value> values_;  // Ordered: a prefix is a range.
  absl::flat_hash_map<uint64_t, Waiter> waiters_;
  absl::flat_hash_map<std::string, absl::flat_hash_set<uint64_t>> by_key_;
  std::size_t bytes_ = 0;
};

}  // namespace gradwire::store
