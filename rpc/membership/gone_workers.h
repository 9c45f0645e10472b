#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "gradwire/base/containers/hash_map.h"

namespace gradwire::rpc {

// The incarnations of workers that are dead or have left. Only the newest are kept, so that a group that
// workers join and leave for months needs a bounded amount of memory. A worker that is forgotten is a
// stranger again. It cannot come back, because the group's log admits no incarnation twice.
//
// A pure state machine. Not thread-safe.
class GoneWorkers {
 public:
  static constexpr std::size_t kMax = 16384;

  explicit GoneWorkers(std::size_t max_size = kMax) : max_size_(max_size) {}

  // Returns false if the worker is contained already.
  bool insert(uint64_t worker) {
    if (!set_.insert(worker).second) return false;
    order_.push_back(worker);
    if (order_.size() > max_size_) {
      set_.erase(order_.front());
      order_.pop_front();
    }
    return true;
  }
  bool contains(uint64_t worker) const { return set_.contains(worker); }
  std::size_t size() const { return set_.size(); }
  bool empty() const { return set_.empty(); }
  const HashSet<uint64_t>& all() const { return set_; }
  // All incarnations in ascending order.
  std::vector<uint64_t> sorted() const {
    std::vector<uint64_t> sorted(set_.begin(), set_.end());
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }

  template <class H>
  friend H AbslHashValue(H hash, const GoneWorkers& gone) {
    return H::combine(std::move(hash), gone.set_);
  }

 private:
  std::size_t max_size_;
  HashSet<uint64_t> set_;
  // In order of insertion, oldest first.
  std::deque<uint64_t> order_;
};

}  // namespace gradwire::rpc
