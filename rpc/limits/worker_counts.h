#pragma once

#include <cstddef>
#include <cstdint>

#include "gradwire/base/containers/hash_map.h"

namespace gradwire::rpc {

// Counts the entries of a table that each worker (an incarnation) has caused. So the table can limit what one
// worker makes it keep, without a search. A worker without entries takes no memory.
//
// Not thread-safe.
class WorkerCounts {
 public:
  void add(uint64_t worker) { ++counts_[worker]; }
  // Does nothing for a worker without entries.
  void remove(uint64_t worker) {
    auto found = counts_.find(worker);
    if (found != counts_.end() && --found->second == 0) counts_.erase(found);
  }
  // Removes all entries of this worker.
  void remove_all(uint64_t worker) { counts_.erase(worker); }

  std::size_t count(uint64_t worker) const {
    auto found = counts_.find(worker);
    return found == counts_.end() ? 0 : found->second;
  }
  // Whether `matches` is true for a worker with entries. Asks each of them at most once.
  template <class Matches>
  bool any(Matches matches) const {
    for (const auto& [worker, count] : counts_) {
      if (matches(worker)) return true;
    }
    return false;
  }
  // Number of workers with entries.
  std::size_t workers() const { return counts_.size(); }
  friend bool operator==(const WorkerCounts&, const WorkerCounts&) = default;

 private:
  // No count is 0.
  HashMap<uint64_t, std::size_t> counts_;
};

}  // namespace gradwire::rpc
