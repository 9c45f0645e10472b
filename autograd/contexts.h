#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "autograd/context_state.h"
#include "autograd/context_table.h"
#include "base/mutex.h"
#include "rpc/agent.h"
#include "rpc/id.h"

namespace gradwire::autograd {

// The contexts that live on one worker. Thread-safe.
class Contexts {
 public:
  // Told of each release, after the context is out of reach and without locks held.
  using Listener = std::function<void(const std::shared_ptr<ContextState>&)>;

  Contexts(rpc::Agent& agent, Listener released);

  // A new context of this worker.
  std::shared_ptr<ContextState> open();
  // The context that a message from elsewhere names; made live if it is new. NotFound when it was released.
  absl::StatusOr<std::shared_ptr<ContextState>> enter(const rpc::Id& context);
  // NotFound, with what to do, when it does not live here.
  absl::StatusOr<std::shared_ptr<ContextState>> find(const rpc::Id& context) const;
  absl::StatusOr<std::shared_ptr<ContextState>> find(int64_t public_id) const;

  // To be called before a message of the context goes to `worker`. nullptr when the context does not live
  // here: then nothing goes in its name.
  std::shared_ptr<ContextState> touch(const rpc::Id& context, uint64_t worker);
  std::vector<uint64_t> touched(const rpc::Id& context) const;

  // The context ends, here and on every worker its messages went to from here; `low` as in CLEANUP, 0 at the
  // origin. `from`: the worker that said so, or 0.
  void release(const rpc::Id& context, uint64_t low, uint64_t from);
  void worker_lost(const rpc::Worker& worker);

  // All that live.
  std::vector<std::shared_ptr<ContextState>> all() const;
  std::size_t size() const;
  // CLEANUPs that have not been answered.
  std::size_t cleanups_under_way() const { return cleanups_->load(); }
  // A message came for a context that does not live here any more.
  void note_late() { late_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t late_messages() const { return late_.load(std::memory_order_relaxed); }

 private:
  std::shared_ptr<ContextState> add_locked(const rpc::Id& context) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  rpc::Agent& agent_;
  const Listener released_;
  // Shared with the calls under way, which may outlive this.
  const std::shared_ptr<std::atomic<std::size_t>> cleanups_ = std::make_shared<std::atomic<std::size_t>>(0);

  std::atomic<uint64_t> late_{0};

  mutable Mutex mutex_;
  ContextTable table_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<rpc::Id, std::shared_ptr<ContextState>> states_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<int64_t, rpc::Id> by_public_id_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_counter_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace gradwire::autograd
