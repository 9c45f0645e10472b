#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "gradwire/base/metrics/thread_slot.h"

namespace gradwire::metrics {

// Adds to a cell. A thread that owns the cell needs no atomic addition: a load and a store are enough, which
// cost about a sixth.
inline void add_to(std::atomic<uint64_t>& cell, std::size_t slot, uint64_t n) {
  if (slot != kSharedSlot) {
    cell.store(cell.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  } else {
    cell.fetch_add(n, std::memory_order_relaxed);
  }
}

// A number that only grows. Thread-safe and wait-free: each thread adds to a cell of its own, in a cache line
// of its own. Must not be used in signal handlers.
class Counter {
 public:
  void add(uint64_t n = 1) { add_in(thread_slot(), n); }
  // As add(), with the calling thread's thread_slot(), for code that adds to several metrics.
  void add_in(std::size_t slot, uint64_t n = 1) { add_to(cells_[slot].value, slot, n); }
  // The sum of all additions. It includes those that happened before the call, and never decreases.
  uint64_t value() const {
    uint64_t sum = 0;
    for (const Cell& cell : cells_) sum += cell.value.load(std::memory_order_relaxed);
    return sum;
  }

 private:
  struct alignas(64) Cell {
    std::atomic<uint64_t> value{0};
  };
  std::array<Cell, kSlots> cells_;
};

// A number that grows and shrinks. Thread-safe and wait-free.
class Gauge {
 public:
  void set(int64_t value) { value_.store(value, std::memory_order_relaxed); }
  void add(int64_t n) { value_.fetch_add(n, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

}  // namespace gradwire::metrics
