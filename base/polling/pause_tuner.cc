#include "gradwire/base/polling/pause_tuner.h"

#include <algorithm>

namespace gradwire {

void PauseTuner::update(int credit, bool soon, bool ran_sender) {
  const int waits = next_break_.load(std::memory_order_relaxed);
  int next = credit;
  if (credit < 0) {
    if (!ran_sender && ++next == 0) next = kTrialCredit;
  } else if (soon) {
    next = std::min(credit + 1, kMostCredit);
    if (next == kMostCredit) next_break_.store(std::max(waits / 2, kFirstBreak), std::memory_order_relaxed);
  } else {
    next -= ran_sender ? kDelay : kMiss;
    if (next < 0) {
      next = -waits;
      next_break_.store(std::min(2 * waits, kLongestBreak), std::memory_order_relaxed);
    }
  }
  credit_.store(next, std::memory_order_relaxed);
}

}  // namespace gradwire
