#include "gradwire/base/metrics/thread_slot.h"

#include <atomic>
#include <bit>
#include <cstdint>

namespace gradwire::metrics::slot_internal {
namespace {

static_assert(kSharedSlot <= 32);
// One bit for each cell that a thread owns. Like thread ids, it belongs to the process.
std::atomic<uint32_t> taken{0};

// Gives the cell back at the end of the thread. A destructor that runs later, and counts, uses the shared
// cell.
struct Return {
  ~Return() {
    if (slot < kSharedSlot) {
      number = kSharedSlot + 1;
      // Release: the next owner continues from the values that this thread has written.
      taken.fetch_and(~(uint32_t{1} << slot), std::memory_order_release);
    }
  }
  std::size_t slot = kSharedSlot;
};

}  // namespace

std::size_t take() {
  thread_local Return at_end;
  uint32_t used = taken.load(std::memory_order_relaxed);
  std::size_t slot = kSharedSlot;
  while (true) {
    slot = static_cast<std::size_t>(std::countr_one(used));
    if (slot >= kSharedSlot) {
      slot = kSharedSlot;
      break;
    }
    if (taken.compare_exchange_weak(used, used | (uint32_t{1} << slot), std::memory_order_acquire,
                                    std::memory_order_relaxed)) {
      break;
    }
  }
  at_end.slot = slot;
  number = slot + 1;
  return slot;
}

}  // namespace gradwire::metrics::slot_internal
