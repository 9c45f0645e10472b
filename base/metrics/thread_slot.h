#pragma once

#include <cstddef>

// Numbers for threads, so that counters can give each thread a cell of its own.
namespace gradwire::metrics {

// Number of cells of a counter. All but the last one belong to one thread at a time.
inline constexpr std::size_t kSlots = 16;
// The cell that all further threads share.
inline constexpr std::size_t kSharedSlot = kSlots - 1;

namespace slot_internal {
// The number of the calling thread plus one; 0 before its first event.
inline thread_local std::size_t number = 0;
// Takes a free number, which the thread gives back when it ends.
std::size_t take();
}  // namespace slot_internal

// The cell of the calling thread. No other thread has the same one at the same time, except kSharedSlot. A
// thread keeps its cell until it ends. Wait-free after a thread's first call.
inline std::size_t thread_slot() {
  const std::size_t number = slot_internal::number;
  return number != 0 ? number - 1 : slot_internal::take();
}

}  // namespace gradwire::metrics
