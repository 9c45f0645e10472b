#include "gradwire/base/polling/core_wait.h"

#include <algorithm>
#include <thread>

namespace gradwire {
namespace {

// Bounds CoreSharing::limit_, which doubles each time: it must not overflow.
constexpr int kHighestLimit = 1 << 20;
// Number of rests after which a wait counts as long.
constexpr int kShortRests = 8;
// How long a thread yields before it sleeps: waking one costs 30 to 50 us where the core idles.
constexpr absl::Duration kYieldFor = absl::Milliseconds(1);
// One rest in this number reads the clock.
constexpr int kYieldsBetweenClocks = 16;

}  // namespace

CoreSharing::CoreSharing(int processes)
    : CoreSharing(processes, static_cast<int>(std::thread::hardware_concurrency())) {}

// The counters are relaxed: they only decide how to wait, and an update that another thread overwrites does
// no harm.
bool CoreSharing::should_sleep(bool shares) {
  if (crowded_) return false;
  if (!shares) {
    shared_in_a_row_.store(0, std::memory_order_relaxed);
    return false;
  }
  const int limit = limit_.load(std::memory_order_relaxed);
  if (shared_in_a_row_.fetch_add(1, std::memory_order_relaxed) + 1 < limit) return false;
  shared_in_a_row_.store(0, std::memory_order_relaxed);
  limit_.store(std::min(2 * limit, kHighestLimit), std::memory_order_relaxed);
  return true;
}

CoreWait::Rest CoreWait::rest(absl::FunctionRef<bool()> core_is_wanted) {
  const int before = rests_++;
  if (before < kShortRests) {
    const bool shares = core_is_wanted();
    if (before == 0 && sharing_.should_sleep(shares)) return Rest::kSleep;
    return shares ? Rest::kYield : Rest::kSpin;
  }
  // The clock is not read at each rest, because that would slow down yielding.
  if (before % kYieldsBetweenClocks != 0) return Rest::kYield;
  const absl::Time now = clock_.now();
  yields_since_ = std::min(yields_since_, now);
  return now >= deadline_ || now >= yields_since_ + kYieldFor ? Rest::kSleep : Rest::kYield;
}

}  // namespace gradwire
