#pragma once

#include <sched.h>

#include <cstdint>

#include "gradwire/base/threads/poller.h"

namespace gradwire {

// How far one wait has come through a WaitPolicy.
//   Patience patience(policy);
//   while (!look() && patience.rest()) {}
class Patience {
 public:
  explicit Patience(const WaitPolicy& policy)
      : pause_ticks_(ticks(policy.pause)), end_ticks_(pause_ticks_ + ticks(policy.yield)) {}

  // Found something: the wait begins anew. Always true.
  bool renew() {
    start_ = 0;
    return true;
  }

  // Rests a moment. False when it is time to sleep.
  bool rest();

 private:
  static uint64_t ticks(absl::Duration duration) {
    return static_cast<uint64_t>(absl::ToInt64Nanoseconds(duration));
  }

  const uint64_t pause_ticks_;
  const uint64_t end_ticks_;
  uint64_t start_ = 0;
  int looks_ = 0;
};

}  // namespace gradwire
