#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace gradwire {

// Threads of any process that maps `word` sleep until it changes. They must look again when they wake:
//
//   sleeper: value = word; if (nothing has come) futex_wait(word, value, at_most);
//   waker:   make it come; ++word; futex_wake_all(word);

// Sleeps while the word holds `value`, until futex_wake_all() or for `at_most`; may return early. Returns at
// once when the word holds another value or `at_most` is not positive.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t value, absl::Duration at_most);

// Wakes all threads that sleep on the word, and returns their number.
int futex_wake_all(const std::atomic<uint32_t>& word);

}  // namespace gradwire
