#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

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

  absl::flat_hash_map<uint64_t, Waiter> waiters_;
  absl::flat_hash_map<std::string, absl::btree_set<uint64_t>> by_name_;
  // The queues of the waiters that have a turn, and the number of turns of each queue.
  absl::flat_hash_map<uint64_t, std::string> turns_;
  absl::flat_hash_map<std::string, std::size_t> turns_of_;
};

}  // namespace gradwire::store
