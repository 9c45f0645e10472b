#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace gradwire {

// The newest costs of one method, and the cost that is expected of it. Pure, not thread-safe.
//
// That is the mean without the largest cost. A copy that is interrupted, because the thread loses its core,
// takes a hundred times as long as the others. It would decide a moving average for a long time. A median
// would ignore it, too, but also a method that is slow in two of five copies, because the reader changes its
// core.
class RecentCosts {
 public:
  static constexpr std::size_t kKept = 5;

  void add(double cost) {
    costs_[next_] = static_cast<float>(cost);
    next_ = (next_ + 1) % kKept;
    count_ = std::min(count_ + 1, kKept);
  }
  void clear() { next_ = count_ = 0; }
  std::size_t count() const { return count_; }

  // REQUIRES: count() > 0
  double expected() const {
    float sum = 0, largest = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      sum += costs_[i];
      largest = std::max(largest, costs_[i]);
    }
    return count_ == 1 ? sum : (sum - largest) / static_cast<float>(count_ - 1);
  }

 private:
  std::array<float, kKept> costs_{};
  std::size_t next_ = 0;
  std::size_t count_ = 0;
};

}  // namespace gradwire
