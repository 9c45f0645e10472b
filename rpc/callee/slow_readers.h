#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/limits/caller_budget.h"
#include "gradwire/rpc/link/link_sender.h"
#include "gradwire/rpc/options.h"

namespace gradwire::rpc {

// Knows which callers leave answers of this worker unread, over all of their links. Thread-safe.
class SlowReaders {
 public:
  explicit SlowReaders(const CallerLimits& limits)
      : answers_(limits.max_unread_bytes, limits.max_calls + limits.max_messages) {}

  // A request of this caller has arrived on the link.
  UnreadAnswers::Verdict on_request(uint64_t caller, LinkSender& link);
  // Whether a request that arrived before may run.
  bool may_run(uint64_t caller, LinkSender& link);
  // The link has ended.
  void forget(uint64_t link);

  // Number of links on which answers wait unread.
  std::size_t links() const;

 private:
  struct Entry {
    uint64_t caller = 0;
    std::weak_ptr<LinkSender> link;
  };

  // Most requests find nothing unread, and need no lock.
  bool none_waits(LinkSender& link) const {
    return link.unread_bytes() == 0 && size_.load(std::memory_order_relaxed) == 0;
  }
  // Links that are released without the lock.
  using Kept = std::vector<std::shared_ptr<LinkSender>>;
  // The bytes that wait on all links of the caller. Removes links on which none waits any more.
  uint64_t unread_locked(uint64_t caller, LinkSender& link, Kept& kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  // By the number of the link: those on which answers were waiting at the last request.
  absl::flat_hash_map<uint64_t, Entry> links_ ABSL_GUARDED_BY(mutex_);
  UnreadAnswers answers_ ABSL_GUARDED_BY(mutex_);

  // The size of links_, for requests that take no lock.
  std::atomic<std::size_t> size_{0};
};

}  // namespace gradwire::rpc
