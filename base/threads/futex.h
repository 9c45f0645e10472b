#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace gradwire {

// Lets threads of all processes that map `word` sleep until it changes. A thread must check its condition
// again after it wakes:
//
//   sleeper: value = word; if (!condition) futex_wait(word, value, at_most);
//   waker:   make the condition true; ++word; futex_wake_all(word);

// Sleeps while `word` holds `value`, until futex_wake_all() or for `at_most`; may return early. Returns at
// once if `word` holds another value or if `at_most` is not positive.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t value, absl::Duration at_most);

// Wakes all threads that sleep on `word` and returns their number.
int futex_wake_all(const std::atomic<uint32_t>& word);

}  // namespace gradwire
