#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/autograd/context/context_table.h"
#include "gradwire/autograd/graph/gradients.h"
#include "gradwire/autograd/graph/graph_nodes.h"
#include "gradwire/autograd/graph/timeline.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/calls/agent_services.h"

namespace gradwire::autograd {

class Pass;

// The context that the calling thread works in, the worker that it works for, and the call of the context
// that it serves. It refers to the context by id only: a captured state must not keep a context alive.
//
// There is one object for each frame of a context's timeline on a worker. These objects share the `ended`
// flag and the timeline, which are one allocation, because programs open a context in every training step.
// Every thread slot and every captured state of the context holds one of these objects, so end() takes effect
// in all of them: a context can end while other threads, or outer frames of the same thread, still have it in
// their slots. Thread-safe.
class ActiveContext {
  struct Shared {
    Timeline timeline;
    std::atomic<bool> ended{false};
  };
  // Makes the second constructor, which std::make_shared needs as a public one, usable by serving() only.
  struct Key {};

 public:
  // A new context, in the frame of the program that opened it.
  ActiveContext(const rpc::Id& context, uint64_t worker)
      : id(context), self(worker), shared_(std::make_shared<Shared>()), frame_(shared_->timeline.program()) {}
  ActiveContext(Key, const ActiveContext& other, std::shared_ptr<Timeline::Frame> served)
      : id(other.id), self(other.self), shared_(other.shared_), frame_(std::move(served)) {}

  // Returns the same context for a thread that serves the call with this path.
  std::shared_ptr<const ActiveContext> serving(Timeline::Path path) const {
    return std::make_shared<const ActiveContext>(Key(), *this, timeline().add_frame(std::move(path)));
  }

  // Marks the context as released on this worker. It is not current on any thread from now on.
  void end() { shared_->ended.store(true, std::memory_order_release); }
  bool ended() const { return shared_->ended.load(std::memory_order_acquire); }

  // Lives as long as any of these objects of the context.
  Timeline& timeline() const { return shared_->timeline; }
  const std::shared_ptr<Timeline::Frame>& frame() const { return frame_; }

  const rpc::Id id;
  // The incarnation of the agent on whose behalf this thread works.
  const uint64_t self;

 private:
  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Timeline::Frame> frame_;
};

// The thread-local slot of the active context, which is part of ExecutionState. Unlike ExecutionSlot it also
// reports to the timeline which thread works for which frame. A slot may hold a context that has ended;
// current_context() does not return such a context.
class ActiveContextSlot {
 public:
  using Value = std::shared_ptr<const ActiveContext>;

  static const Value& get() { return value_; }
  static void set(Value value);

  class Scope {
   public:
    explicit Scope(Value value) : previous_(get()) { set(std::move(value)); }
    ~Scope() { set(std::move(previous_)); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Value previous_;
  };

 private:
  static inline thread_local Value value_;
  // The thread's sequence number when `value_` was set.
  static thread_local uint64_t entered_at_;
  static const bool registered_;
};

// Returns the context that is current on the calling thread, or nullptr.
inline std::shared_ptr<const ActiveContext> current_context() {
  const std::shared_ptr<const ActiveContext>& active = ActiveContextSlot::get();
  return active == nullptr || active->ended() ? nullptr : active;
}

// Returns the number that programs see as the id of a context. It is the same on all workers, and two
// contexts have the same number with a probability of 2^-63.
inline int64_t public_id(const rpc::Id& id) {
  auto mix = [](uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  const uint64_t mixed = mix(id.origin + mix(id.counter + 0x9e3779b97f4a7c15u)) & 0x7fffffffffffffffu;
  return mixed == 0 ? 1 : static_cast<int64_t>(mixed);
}

// The state of one live context on one worker. Contexts holds it until the context is released; passes and
// handlers that work with it share the ownership.
struct ContextState {
  // `self`: the incarnation of the worker. `unjoined_gradients`: a counter for all contexts of the worker.
  ContextState(const rpc::Id& context, uint64_t self,
               std::shared_ptr<std::atomic<uint64_t>> unjoined_gradients)
      : id(context),
        unjoined_gradients(std::move(unjoined_gradients)),
        active(std::make_shared<ActiveContext>(context, self)) {}

  const rpc::Id id;
  // Number of gradients that ended at tensors which arrived outside every context (unjoined.h).
  const std::shared_ptr<std::atomic<uint64_t>> unjoined_gradients;
  // This context in the frame of the program that opened it.
  const std::shared_ptr<ActiveContext> active;

  Mutex mutex;
  HashMap<uint64_t, std::shared_ptr<SendNode>> send_nodes ABSL_GUARDED_BY(mutex);
  // The last number that was given to a message with tensors that require grad.
  uint64_t messages ABSL_GUARDED_BY(mutex) = 0;
  Gradients gradients ABSL_GUARDED_BY(mutex);
  // Passes of which a message has arrived. Ended passes are kept because their messages may be repeated. At
  // the limit the oldest ended pass is forgotten: a repetition is not expected after that many later passes.
  static constexpr std::size_t kMaxPasses = 256;
  HashMap<rpc::Id, std::shared_ptr<Pass>> passes ABSL_GUARDED_BY(mutex);
  std::deque<rpc::Id> pass_order ABSL_GUARDED_BY(mutex);
  // The context is released: a pass that begins now is aborted.
  bool released ABSL_GUARDED_BY(mutex) = false;
  // The context has passed a step barrier on some worker (autograd.proto, "Optimizer steps").
  bool admitted ABSL_GUARDED_BY(mutex) = false;
};

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
  HashMap<rpc::Id, std::shared_ptr<ContextState>> states_ ABSL_GUARDED_BY(mutex_);
  HashMap<int64_t, rpc::Id> by_public_id_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_counter_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace gradwire::autograd
