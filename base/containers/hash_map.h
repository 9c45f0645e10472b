#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "gradwire/base/log/contained.h"

namespace gradwire {

// The allocator of the tables below. Abseil's tables change themselves before they allocate memory and before
// they construct an entry, so an exception in between leaves a table that reads freed memory later. Instead,
// the process ends with a message.
template <class T>
struct TableAllocator {
  using value_type = T;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  using is_always_equal = std::true_type;

  TableAllocator() = default;
  template <class U>
  TableAllocator(const TableAllocator<U>&) {}

  T* allocate(std::size_t count) noexcept {
    T* memory = nullptr;
    run_or_end("the growth of a table", [&] { memory = std::allocator<T>().allocate(count); });
    return memory;
  }
  void deallocate(T* memory, std::size_t count) { std::allocator<T>().deallocate(memory, count); }
  template <class U, class... Arguments>
  void construct(U* place, Arguments&&... arguments) noexcept {
    run_or_end("a new entry of a table",
               [&] { ::new (static_cast<void*>(place)) U(std::forward<Arguments>(arguments)...); });
  }

  friend bool operator==(const TableAllocator&, const TableAllocator&) { return true; }
};

// Abseil's hash tables, for all code of the library. Growing without memory, and constructors of entries that
// throw, end the process.
template <class Key, class Value, class Hash = typename absl::flat_hash_set<Key>::hasher,
          class Equal = typename absl::flat_hash_set<Key>::key_equal>
using HashMap = absl::flat_hash_map<Key, Value, Hash, Equal, TableAllocator<std::pair<const Key, Value>>>;

template <class Key, class Hash = typename absl::flat_hash_set<Key>::hasher,
          class Equal = typename absl::flat_hash_set<Key>::key_equal>
using HashSet = absl::flat_hash_set<Key, Hash, Equal, TableAllocator<Key>>;

}  // namespace gradwire
