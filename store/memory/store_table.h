#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/store/interface/limits.h"

namespace gradwire::store {

// The waiters of a StoreTable: which of them wait for which names, and which a change satisfies. A name is
// that of a key or of a queue. A satisfied waiter leaves at once, so each waiter is woken only once. Waiters
// are satisfied in the order of their numbers.
//
// A waiter in turn that an item has woken has left, but has a turn: its client takes the item later, or
// never. As long as an item has a turn it wakes no other waiter. Not thread-safe.
class StoreWaiters {
 public:
  // Shared, so that waking many waiters with one large value copies nothing.
  using Value = std::shared_ptr<const std::string>;
  struct Wakeup {
    uint64_t waiter;
    Value value;  // Null for a wait; set for a watch and a pop.
  };
  using Wakeups = std::vector<Wakeup>;

  enum class Kind {
    kWait,    // Waits until all names exist.
    kInTurn,  // Waits until its name exists; an item of a queue wakes one of them.
    kWatch,   // Waits for a key's value other than the last one.
    kPop,     // Waits for an item of a queue.
  };
  struct Waiter {
    std::vector<std::string> names;  // Without duplicates.
    Kind kind;
    std::optional<std::string> last_value;
    std::size_t missing;  // For kWait: number of its names that do not exist.
  };

  // `id` must not be registered.
  void add(uint64_t id, Waiter waiter);
  // Removes a waiter and returns it; nullopt if it was not registered.
  std::optional<Waiter> remove(uint64_t id);

  // The key has a new value; `created`: no key or queue of this name existed before.
  void on_value(absl::string_view key, bool created, const Value& value, Wakeups& wakeups);
  // The queue has one more item.
  void on_item(absl::string_view queue, bool created, Wakeups& wakeups);
  // Ends the turn of a waiter. Returns its queue; nullopt if it had no turn.
  std::optional<std::string> end_turn(uint64_t id);
  // The queue has `items`: wakes waiters in turn until each item has a turn.
  void give_turns(absl::string_view queue, std::size_t items, Wakeups& wakeups);
  // Neither the key nor the queue exists any more.
  void on_gone(absl::string_view name);
  // Gives the item to the first pop that waits for the queue. Returns false if none does.
  bool give(absl::string_view queue, const Value& item, Wakeups& wakeups);

  std::size_t size() const { return waiters_.size(); }
  std::size_t num_turns() const { return turns_.size(); }
  // Number of names that registered waiters wait for.
  std::size_t num_awaited_names() const { return by_name_.size(); }

 private:
  void start_turn(uint64_t id, absl::string_view queue);

  HashMap<uint64_t, Waiter> waiters_;
  HashMap<std::string, absl::btree_set<uint64_t>> by_name_;
  // The queues of the waiters that have a turn, and the number of turns of each queue.
  HashMap<uint64_t, std::string> turns_;
  HashMap<std::string, std::size_t> turns_of_;
};

// The state machine behind HashStore, FileStore and the TcpStore's server: keys, values, queues and the
// waiters on them. It has no threads, clock or sockets: a change returns the waiters that it satisfied, and
// the owner wakes them.
//
// A waiter is identified by a number that the owner chooses; numbers of registered waiters are distinct. A
// waiter is registered while its keys are missing, and removed when a change satisfies it or when it is
// dropped.
//
// Not thread-safe; the owner guards it.
class StoreTable {
 public:
  using Value = StoreWaiters::Value;
  using Wakeup = StoreWaiters::Wakeup;
  using Wakeups = StoreWaiters::Wakeups;

  explicit StoreTable(std::size_t max_bytes = kMaxStoreBytes) : max_bytes_(max_bytes) {}

  // Changes append the waiters that they satisfied to `wakeups`. They fail with ResourceExhausted, and change
  // nothing, if the table would hold more than max_bytes.
  absl::Status set(absl::string_view key, absl::string_view value, Wakeups& wakeups);
  // InvalidArgument if the value is not a decimal number or the sum does not fit 64 bits.
  absl::StatusOr<int64_t> add(absl::string_view key, int64_t n, Wakeups& wakeups);
  // As Store::compare_set.
  absl::StatusOr<std::string> compare_set(absl::string_view key, absl::string_view expected,
                                          absl::string_view desired, Wakeups& wakeups);
  // Sets all entries, or none if there is no room.
  using Entry = std::pair<absl::string_view, absl::string_view>;
  absl::Status set_all(absl::Span<const Entry> entries, Wakeups& wakeups);
  // Appends to the key's value. ResourceExhausted if the value would be over the limit of a value.
  absl::Status append(absl::string_view key, absl::string_view value, Wakeups& wakeups);
  bool erase(absl::string_view key);
  // Appends an item to the queue.
  absl::Status push(absl::string_view queue, absl::string_view value, Wakeups& wakeups);
  // Takes the first item of the queue. Null if it is empty.
  Value pop(absl::string_view queue);

  // The key's value if there is one and it differs from `last_value`; else null.
  Value find(absl::string_view key, std::optional<absl::string_view> last_value = std::nullopt) const;
  int64_t num_keys(absl::string_view prefix = "") const;
  // The keys in ascending order. ResourceExhausted if they take more than kMaxListBytes.
  absl::StatusOr<std::vector<std::string>> list_keys(absl::string_view prefix) const;
  int64_t queue_len(absl::string_view queue) const;
  // The first item of the queue. Null if it is empty.
  Value front(absl::string_view queue) const;
  // Whether there is such a key, or a queue with items.
  bool exists(absl::string_view name) const { return values_.contains(name) || queues_.contains(name); }
  // The values of all the keys; null for a queue. ResourceExhausted if they take more than kMaxMultiBytes.
  // REQUIRES: missing(keys).empty().
  absl::StatusOr<std::vector<Value>> find_all(const std::vector<std::string>& keys) const;
  std::vector<std::string> missing(const std::vector<std::string>& keys) const;

  // Returns true, and registers nothing, if all keys exist. Else registers `waiter`, which is woken once all
  // keys exist. With `in_turn`, which is for one key, an item that is pushed to a queue of this name wakes
  // only one such waiter, so that each of them finds an item when it then pops. The waiter then has a turn,
  // until end_turn().
  bool wait(uint64_t waiter, const std::vector<std::string>& keys, bool in_turn = false);
  // Returns a value other than `last_value` (any value if that is nullopt) if the key has one. Else returns
  // null and registers `waiter`, which is woken with such a value.
  Value watch(uint64_t waiter, absl::string_view key, std::optional<absl::string_view> last_value);
  // Takes the first item of the queue. If the queue is empty, returns null and registers `waiter`, which is
  // woken with an item.
  Value wait_for_item(uint64_t waiter, absl::string_view queue);
  // Ends the turn of a waiter that was woken, if it has one: it has popped, or will not. If an item is left
  // for which no other has a turn, returns the next waiter, which is woken.
  Wakeups end_turn(uint64_t waiter);
  // Removes a waiter. Returns the keys that it still missed (the key of a watch, the queue of a pop); empty
  // if it was not registered.
  std::vector<std::string> drop(uint64_t waiter);
  const StoreWaiters& waiters() const { return waiters_; }

 private:
  using Queue = std::deque<Value>;  // Has at least one item.

  void put(absl::string_view key, std::string value, Wakeups& wakeups);
  // Checks that a key of this name may have `value_bytes` bytes.
  absl::Status check_room(absl::string_view key, std::size_t value_bytes) const;

  const std::size_t max_bytes_;

  absl::btree_map<std::string, Value> values_;  // Ordered: a prefix is a range.
  HashMap<std::string, Queue> queues_;
  StoreWaiters waiters_;
  std::size_t bytes_ = 0;
};

// Copies of the values, as find_all() returns them; a null one is empty.
std::vector<std::string> copies_of(const std::vector<StoreTable::Value>& values);

}  // namespace gradwire::store
