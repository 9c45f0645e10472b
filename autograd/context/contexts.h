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
  // Told of each release, after the context is out of reach and without locks held.
  using Listener = std::function<void(const std::shared_ptr<ContextState>&)>;

  Contexts(rpc::AgentServices& agent, Listener released);

  // A new context of this worker.
  std::shared_ptr<ContextState> open();
  // The context that a message of worker `from`, an incarnation, names; made live if it is new. NotFound when
  // it was released.
  absl::StatusOr<std::shared_ptr<ContextState>> enter(const rpc::Id& context, uint64_t from);
  // NotFound, with what to do, when it does not live here.
  absl::StatusOr<std::shared_ptr<ContextState>> find(const rpc::Id& context) const;
  absl::StatusOr<std::shared_ptr<ContextState>> find(int64_t public_id) const;

  // To be called before a message of the context goes to `worker`. nullptr when the context does not live
  // here: then nothing goes in its name.
  std::shared_ptr<ContextState> touch(const rpc::Id& context, uint64_t worker);
  std::vector<uint64_t> touched(const rpc::Id& context) const;

  // A context of this worker ends, here and on every worker its messages went to from here.
  void release(const rpc::Id& context);
  // Worker `from` says that the context has ended; `low` as in CLEANUP. PermissionDenied when it lives and
  // `from` is neither its origin nor a party (ContextTable).
  absl::Status cleanup(const rpc::Id& context, uint64_t low, uint64_t from);
  void worker_lost(const rpc::Worker& worker);

  // All that live.
  std::vector<std::shared_ptr<ContextState>> all() const;
  std::size_t size() const;
  // CLEANUPs that have not been answered.
  std::size_t cleanups_under_way() const { return cleanups_->load(); }
  // A message came for a context that does not live here any more.
  void note_late() { late_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t late_messages() const { return late_.load(std::memory_order_relaxed); }
  // CLEANUPs that were refused.
  uint64_t refused_cleanups() const { return refused_.load(std::memory_order_relaxed); }
  // The numbers of released contexts and of origins that the table remembers.
  std::size_t remembered() const;
  std::size_t origins() const;
  uint64_t unjoined_gradients() const { return unjoined_gradients_->load(std::memory_order_relaxed); }

 private:
  // Contexts that have ended here, and the workers to notify.
  struct Gone {
    std::vector<std::shared_ptr<ContextState>> states;
    std::vector<std::pair<rpc::Id, uint64_t>> to_tell;
  };
  void take_locked(const rpc::Id& context, const std::vector<uint64_t>& touched, Gone& gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Without the lock. `from` has said that `said` has ended, and needs no CLEANUP for that one.
  void finish(Gone gone, uint64_t low, const rpc::Id& said, uint64_t from);
  std::shared_ptr<ContextState> add_locked(const rpc::Id& context) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  rpc::AgentServices& agent_;
  const Listener released_;
  // Shared with the calls under way, which may outlive this.
  const std::shared_ptr<std::atomic<std::size_t>> cleanups_ = std::make_shared<std::atomic<std::size_t>>(0);

  std::atomic<uint64_t> late_{0};
  std::atomic<uint64_t> refused_{0};
  // Shared with the contexts, which passes under way may hold longer than this lives.
  const std::shared_ptr<std::atomic<uint64_t>> unjoined_gradients_ =
      std::make_shared<std::atomic<uint64_t>>(0);

  mutable Mutex mutex_;
  ContextTable table_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<rpc::Id, std::shared_ptr<ContextState>> states_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<int64_t, rpc::Id> by_public_id_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_counter_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace gradwire::autograd
