#include "gradwire/base/polling/poll_limits.h"

#include <algorithm>

namespace gradwire {
namespace {

// The budget is a bucket that holds what this time of the past allows.
constexpr int64_t kSavedTime = 1'000'000'000;
constexpr int64_t kMinBusy = 8'000'000;
constexpr int64_t kMaxBusy = 256'000'000;

}  // namespace

// Several threads may fill the budget at the same time: the exchange gives each part of the time to one of
// them.
int64_t PollBudget::left(int64_t now) {
  const int64_t filled = filled_.exchange(now, std::memory_order_relaxed);
  const int64_t passed = filled == 0 ? kSavedTime : std::clamp<int64_t>(now - filled, 0, kSavedTime);
  const auto gained = static_cast<int64_t>(share_ * static_cast<double>(passed));
  const auto most = static_cast<int64_t>(share_ * static_cast<double>(kSavedTime));
  int64_t left = left_.load(std::memory_order_relaxed);
  while (!left_.compare_exchange_weak(left, std::min(left + gained, most), std::memory_order_relaxed)) {
  }
  return std::min(left + gained, most);
}

void CoreContention::yielded(int64_t nanoseconds, int64_t now, int64_t least) {
  if (nanoseconds < least) return;
  const int64_t last = length_.load(std::memory_order_relaxed);
  const bool again = last != 0 && now - until_.load(std::memory_order_relaxed) < last;
  const int64_t length = again ? std::min(2 * last, kMaxBusy) : kMinBusy;
  length_.store(length, std::memory_order_relaxed);
  until_.store(now + length, std::memory_order_relaxed);
}

}  // namespace gradwire
