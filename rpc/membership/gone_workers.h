#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace gradwire::rpc {

// Workers that are dead or have left, by their incarnations: the newest of them, so that a group which
// workers join and leave for months needs no more memory. A worker whose end is forgotten is a stranger
// again. It cannot come back, since the group's log admits no incarnation twice.
//
// A pure state machine. Not thread-safe.
class GoneWorkers {
 public:
  static constexpr std::size_t kMax = 16384;

  explicit GoneWorkers(std::size_t most = kMax) : most_(most) {}

  // False when it is here already.
  bool insert(uint64_t worker) {
    if (!set_.insert(worker).second) return false;
    order_.push_back(worker);
    if (order_.size() > most_) {
      set_.erase(order_.front());
      order_.pop_front();
    }
    return true;
  }
  bool contains(uint64_t worker) const { return set_.contains(worker); }
  std::size_t size() const { return set_.size(); }
  bool empty() const { return set_.empty(); }
  const absl::flat_hash_set<uint64_t>& all() const { return set_; }
  // In the same order whatever the history.
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
  std::size_t most_;
  absl::flat_hash_set<uint64_t> set_;
  // The oldest first.
  std::deque<uint64_t> order_;
};

}  // namespace gradwire::rpc
