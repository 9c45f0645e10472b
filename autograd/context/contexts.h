#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "gradwire/autograd/context/context_state.h"
#include "gradwire/autograd/context/context_table.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/agent/agent_services.h"

namespace gradwire::autograd {

// The contexts that live on one worker. Thread-safe.
class Contexts {
 public:
  // Called for each released context, after the context was removed, without locks held.
  using Listener = std::function<void(const std::shared_ptr<ContextState>&)>;

  Contexts(rpc::AgentServices& agent, Listener released);

  // Opens a new context of this worker.
  std::shared_ptr<ContextState> open();
  // Returns the context that a message of worker `from`, an incarnation, names; makes it live if it is new.
  // NotFound if the context was released, ResourceExhausted at the limit of live contexts, in all or of this
  // worker (CallerLimits::max_contexts).
  absl::StatusOr<std::shared_ptr<ContextState>> enter(const rpc::Id& context, uint64_t from);
  // Returns a live context; NotFound if it is not live here.
  absl::StatusOr<std::shared_ptr<ContextState>> find(const rpc::Id& context) const;
  absl::StatusOr<std::shared_ptr<ContextState>> find(int64_t public_id) const;

  // Must be called before a message of the context is sent to `worker`. Returns nullptr if the context is not
  // live here: then no message of the context may be sent.
  std::shared_ptr<ContextState> touch(const rpc::Id& context, uint64_t worker);
  std::vector<uint64_t> touched(const rpc::Id& context) const;

  // Ends a context of this worker, here and on every worker that this worker sent messages of the context to.
  void release(const rpc::Id& context);
  // Processes a report of worker `from` that the context has ended; `low` as in CLEANUP. PermissionDenied if
  // the context is live and `from` is neither its origin nor a party (ContextTable).
  absl::Status cleanup(const rpc::Id& context, uint64_t low, uint64_t from);
  void worker_lost(const rpc::Worker& worker);

  // Returns all live contexts.
  std::vector<std::shared_ptr<ContextState>> all() const;
  std::size_t size() const;
  // Number of CLEANUPs that have not been answered.
  std::size_t cleanups_under_way() const { return cleanups_->load(); }
  // Counts a message that arrived for a context that is not live here any more.
  void note_late() { late_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t late_messages() const { return late_.load(std::memory_order_relaxed); }
  // Number of CLEANUPs that were refused.
  uint64_t refused_cleanups() const { return refused_.load(std::memory_order_relaxed); }
  // The numbers of released contexts and of origins that the table remembers.
  std::size_t remembered() const;
  std::size_t origins() const;
  uint64_t unjoined_gradients() const { return unjoined_gradients_->load(std::memory_order_relaxed); }

 private:
  absl::Status too_many_of(uint64_t from) const;
  // Contexts that have ended here, and the workers to notify.
  struct Gone {
    std::vector<std::shared_ptr<ContextState>> states;
    std::vector<std::pair<rpc::Id, uint64_t>> to_notify;
  };
  void take_locked(const rpc::Id& context, const std::vector<uint64_t>& touched, Gone& gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Calls the listener and sends the CLEANUPs, without the lock. Worker `from` reported the end of
  // `reported`, so it gets no CLEANUP for that context.
  void finish(Gone gone, uint64_t low, const rpc::Id& reported, uint64_t from);
  std::shared_ptr<ContextState> add_locked(const rpc::Id& context) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  rpc::AgentServices& agent_;
  const Listener released_;
  // Shared with the calls under way, which may outlive this object.
  const std::shared_ptr<std::atomic<std::size_t>> cleanups_ = std::make_shared<std::atomic<std::size_t>>(0);

  std::atomic<uint64_t> late_{0};
  std::atomic<uint64_t> refused_{0};
  // Shared with the contexts, because passes under way may keep a context longer than this object lives.
  const std::shared_ptr<std::atomic<uint64_t>> unjoined_gradients_ =
      std::make_shared<std::atomic<uint64_t>>(0);

  mutable Mutex mutex_;
  ContextTable table_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<rpc::Id, std::shared_ptr<ContextState>> states_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<int64_t, rpc::Id> by_public_id_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_counter_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace gradwire::autograd
