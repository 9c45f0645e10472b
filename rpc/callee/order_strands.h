#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/strand.h"

namespace gradwire::rpc {

// The strands of ordered calls, by caller and order key. A strand lives while calls use it. Each thread of a
// caller has its own key, so the table removes the entries of strands that have ended. Thread-safe.
class OrderStrands {
 public:
  explicit OrderStrands(std::shared_ptr<Executor> executor) : executor_(std::move(executor)) {}

  // Returns the strand of this key of the caller with this incarnation. Makes one if none is alive: then none
  // of its calls is queued or running, so a new strand keeps the order as well. Takes constant time on
  // average. The table has at most kMostUnused entries, or twice those that were in use at its last sweep.
  std::shared_ptr<Strand> find(uint64_t incarnation, uint64_t key) {
    MutexLock lock(mutex_);
    std::weak_ptr<Strand>& slot = strands_[{incarnation, key}];
    std::shared_ptr<Strand> strand = slot.lock();
    if (strand != nullptr) return strand;
    strand = std::make_shared<Strand>(executor_);
    slot = strand;
    if (strands_.size() > sweep_above_) sweep_locked();
    return strand;
  }

  // Number of entries, those of ended strands included.
  std::size_t size() const {
    MutexLock lock(mutex_);
    return strands_.size();
  }
  // Number of entries that were examined so far in order to remove those of ended strands.
  uint64_t examined() const {
    MutexLock lock(mutex_);
    return examined_;
  }

  static constexpr std::size_t kMostUnused = 1024;

 private:
  // At least half of the entries that the next sweep examines will be new, so each new entry pays for two.
  void sweep_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    examined_ += strands_.size();
    absl::erase_if(strands_, [](const auto& entry) { return entry.second.expired(); });
    sweep_above_ = std::max(kMostUnused, 2 * strands_.size());
  }

  const std::shared_ptr<Executor> executor_;

  mutable Mutex mutex_;
  absl::flat_hash_map<std::pair<uint64_t, uint64_t>, std::weak_ptr<Strand>> strands_ ABSL_GUARDED_BY(mutex_);
  // The next sweep comes when there are more entries than this.
  std::size_t sweep_above_ ABSL_GUARDED_BY(mutex_) = kMostUnused;
  uint64_t examined_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradwire::rpc
