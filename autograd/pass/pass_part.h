#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "gradwire/autograd/context/context_state.h"
#include "gradwire/autograd/graph/local_executor.h"
#include "gradwire/autograd/pass/pass_calls.h"
#include "gradwire/autograd/pass/pass_state.h"
#include "gradwire/autograd/pass/root_wait.h"
#include "gradwire/base/mutex.h"

namespace gradwire::autograd {

// One worker's part in one backward pass: the protocol (PassState) and the graph (LocalExecutor) under one
// lock, and the answers that it owes. All that happens to the pass comes in through update(), which then does
// what the protocol asks for. Thread-safe; owned by shared_ptr: the pass holds it, and every call under way.
class PassPart : public std::enable_shared_from_this<PassPart> {
 public:
  // Called once, when this worker's part has ended, well or not.
  using Ended = std::function<void(const absl::Status&)>;

  PassPart(PassCalls::Options calls, const ContextState& context, Ended ended);

  PassCalls& calls() { return calls_; }
  RootWait& root() { return root_; }
  // This worker's part is over.
  bool ended() const { return part_ended_.load(std::memory_order_acquire); }

  // The parts that an event may use while the lock is held.
  struct Locked {
    PassState& state;
    // nullptr once the part has ended.
    LocalExecutor* graph;
    PassState::Actions& actions;
    PassPart& part;

    // The number that stands for `reply`.
    uint64_t owe(const PassReply& reply) { return part.owe_locked(reply); }
    // Tells `state` of what has been counted in `graph`.
    void count() { state.counted(graph->take_counted()); }
    // Everything is marked: with inputs, what has no use is known.
    void begin_run();
    // Ends the pass with an error of this worker's.
    void fail(absl::Status status) { state.fail(part.here(std::move(status)), actions); }
  };
  using Event = absl::FunctionRef<void(Locked&)>;
  // Calls `event` with the lock, which must not call others; then, without it, does what `actions` say.
  // `on_executor`: whether this thread may run destructors of the user's objects.
  void update(Event event, bool on_executor = true);
  // The answer to a message of the pass, on any thread: calls `event`, or ends the pass with the error.
  void answered(const absl::StatusOr<proto::PassAnswer>& answer, Event event);

  // The first reason ends the pass, here and on the workers that it reached from here.
  void abort(const absl::Status& reason);
  void worker_lost(const rpc::Worker& worker, const absl::Status& reason);
  // A worker that was lost before this part knew of it: worker_lost() does not come any more.
  void notice_loss(uint64_t incarnation);
  // The same of the sender of a message, and of the root.
  void notice_losses(uint64_t from);

  // Runs nodes until none is ready, one at a time and without the lock; returns at once when another thread
  // does. `keep` gets the gradients of leaves, `ship` those for another worker.
  using Keep = absl::FunctionRef<absl::Status(LocalExecutor::Task&)>;
  using Ship = absl::FunctionRef<void(const RecvNode&, torch::autograd::variable_list)>;
  void run_nodes(Keep keep, Ship ship);

 private:
  // The actions that follow without the lock.
  struct Effects {
    PassState::Actions actions;
    std::vector<std::pair<PassReply, rpc::ServiceReply>> replies;
    // With the graph go objects of the user's.
    std::shared_ptr<LocalExecutor> graph;
  };
  // Moves into `effects` the replies and the graph that its actions say are due.
  void settle_locked(Effects& effects, bool on_executor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void perform(Effects& effects);
  void send_finish(uint64_t incarnation);
  // `mutex_` is held: Locked exists only then.
  uint64_t owe_locked(const PassReply& reply) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  absl::Status here(absl::Status status) const;

  PassCalls calls_;
  const Ended ended_;
  RootWait root_;

  Mutex mutex_;
  PassState state_ ABSL_GUARDED_BY(mutex_);
  // nullptr once the part has ended. LocalExecutor::run() is called without the lock.
  std::shared_ptr<LocalExecutor> graph_ ABSL_GUARDED_BY(mutex_);
  // A graph that could not be let go of where the part ended.
  std::shared_ptr<LocalExecutor> spent_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, PassReply> replies_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_reply_ ABSL_GUARDED_BY(mutex_) = 1;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;

  std::atomic<bool> part_ended_{false};
};

}  // namespace gradwire::autograd
