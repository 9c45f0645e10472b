#pragma once

#include <cstdint>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "gradwire/base/mutex.h"

namespace gradwire::rpc {

// The request ids of the repeatable calls of one agent, and which of them wait for an answer
// (proto/rpc.proto, "Repeated calls"). Thread-safe.
class RequestIds {
 public:
  // Returns an id for a request to this worker (an incarnation).
  uint64_t begin(uint64_t to) {
    MutexLock lock(mutex_);
    open_[to].insert(next_);
    return next_++;
  }
  // Call when the request has its answer, or the answer is not wanted any more.
  void end(uint64_t to, uint64_t id) {
    MutexLock lock(mutex_);
    auto found = open_.find(to);
    if (found == open_.end()) return;
    found->second.erase(id);
    if (found->second.empty()) open_.erase(found);
  }
  // No request to this worker with an id below the result waits for an answer.
  uint64_t answered_below(uint64_t to) const {
    MutexLock lock(mutex_);
    auto found = open_.find(to);
    return found == open_.end() ? next_ : *found->second.begin();
  }
  bool empty() const {
    MutexLock lock(mutex_);
    return open_.empty();
  }
  // Number of requests that wait for an answer.
  std::size_t size() const {
    std::size_t size = 0;
    MutexLock lock(mutex_);
    for (const auto& [to, ids] : open_) size += ids.size();
    return size;
  }

 private:
  mutable Mutex mutex_;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<uint64_t, std::set<uint64_t>> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
