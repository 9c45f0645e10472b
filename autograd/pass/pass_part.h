#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "gradwire/autograd/context/context_state.h"
#include "gradwire/autograd/graph/local_executor.h"
#include "gradwire/autograd/pass/pass_calls.h"
#include "gradwire/autograd/pass/pass_state.h"
#include "gradwire/autograd/pass/root_wait.h"
#include "gradwire/base/mutex.h"
#include "gradwire/device/streams.h"

namespace gradwire::autograd {

// One worker's part in one backward pass: the protocol (PassState) and the graph (LocalExecutor) under one
// lock, and the replies that it owes to other workers. Every event of the pass goes through update(), which
// then performs the actions of the protocol. Thread-safe. Owned by shared_ptr; the pass and every call under
// way hold one.
class PassPart : public std::enable_shared_from_this<PassPart> {
 public:
  // Called once, when this worker's part has ended, with OK or the error.
  using Ended = std::function<void(const absl::Status&)>;

  PassPart(PassCalls::Options calls, const ContextState& context, Ended ended);

  PassCalls& calls() { return calls_; }
  RootWait& root() { return root_; }
  // Whether this worker's part has ended.
  bool ended() const { return part_ended_.load(std::memory_order_acquire); }
  // The part for observers, and when it began, on Clock::system().
  PassState::View view() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Time began() const { return began_; }
  // The messages of the graph, at most `most` of each kind; none once the part has ended.
  GraphMessages messages(std::size_t most) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes the current streams of the calling thread wait for the nodes that have run here on accelerators.
  // Must be called after the part has ended. Does not block the host. Returns the error of a lost device.
  absl::Status order_before_current_streams();

  // The parts that an event may use while the lock is held.
  struct Locked {
    PassState& state;
    // nullptr once the part has ended.
    LocalExecutor* graph;
    PassState::Actions& actions;
    PassPart& part;

    // Stores `reply` and returns the number by which PassState refers to it.
    uint64_t owe(const PassReply& reply) { return part.owe_locked(reply); }
    // Adds the events that were counted in `graph` to the count of `state`.
    void count() { state.counted(graph->take_counted()); }
    // Ends the marking. In a pass with inputs the unused part of the graph is known from now on.
    void begin_run();
    // Ends the pass with an error of this worker.
    void fail(absl::Status status) { state.fail(part.with_this_worker(std::move(status)), actions); }
  };
  using Event = absl::FunctionRef<void(Locked&)>;
  // Calls `event` with the lock held; then performs its `actions` without the lock. `event` must not call
  // other workers or user code. `on_executor`: whether this thread may run destructors of user objects.
  void update(Event event, bool on_executor = true);
  // Processes the answer to a message of the pass, on any thread: calls `event` if it is OK, otherwise ends
  // the pass with the error.
  void answered(const absl::StatusOr<proto::PassAnswer>& answer, Event event);

  // Ends the pass with `reason`, here and on the workers that it reached from here. Later reasons are
  // ignored.
  void abort(const absl::Status& reason);
  void worker_lost(const rpc::Worker& worker, const absl::Status& reason);
  // Calls worker_lost() if the worker is lost already. Must be called after the pass begins to depend on a
  // worker: if the worker was lost before, worker_lost() is not called by the agent any more.
  void notice_loss(uint64_t incarnation);
  // Same as notice_loss() for `from`, the sender of a message, and for the root.
  void notice_losses(uint64_t from);

  // Runs nodes one at a time, without the lock, until none is ready. Returns at once if another thread runs
  // nodes already. `keep` gets the gradients of leaves, `ship` those for another worker. Both are called with
  // the node's stream as the current one, and the gradients are ready on the current streams.
  using Keep = absl::FunctionRef<absl::Status(LocalExecutor::Task&)>;
  using Ship = absl::FunctionRef<void(const RecvNode&, torch::autograd::variable_list)>;
  void run_nodes(Keep keep, Ship ship);

 private:
  // Orders later handlers of this worker after the nodes that have run here on accelerators.
  void publish_streams();

  // The actions that follow without the lock.
  struct Effects {
    PassState::Actions actions;
    std::vector<std::pair<PassReply, rpc::ServiceReply>> replies;
    // A graph to destroy. Its destructor may destroy user objects.
    std::shared_ptr<LocalExecutor> graph;
  };
  // Moves the replies and the graph that the actions refer to into `effects`.
  void settle_locked(Effects& effects, bool on_executor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Performs the actions, without the lock.
  void perform(Effects& effects);
  void send_finish(uint64_t incarnation);
  // REQUIRES: `mutex_` is held. Only Locked calls it, and Locked exists only while the mutex is held.
  uint64_t owe_locked(const PassReply& reply) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Marks an error with the name of this worker.
  absl::Status with_this_worker(absl::Status status) const;

  PassCalls calls_;
  const Ended ended_;
  const absl::Time began_;
  RootWait root_;

  Mutex mutex_;
  PassState state_ ABSL_GUARDED_BY(mutex_);
  // nullptr once the part has ended. LocalExecutor::run() is called without the lock.
  std::shared_ptr<LocalExecutor> graph_ ABSL_GUARDED_BY(mutex_);
  // A graph that is not used any more but could not be destroyed on the thread that ended the part.
  std::shared_ptr<LocalExecutor> spent_ ABSL_GUARDED_BY(mutex_);
  // The streams on which nodes have run. Set when the part ends.
  device::StreamSet streams_ ABSL_GUARDED_BY(mutex_);
  // The replies that are owed, by number.
  absl::flat_hash_map<uint64_t, PassReply> replies_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_reply_ ABSL_GUARDED_BY(mutex_) = 1;
  // A thread is in run_nodes().
  bool running_ ABSL_GUARDED_BY(mutex_) = false;

  std::atomic<bool> part_ended_{false};
};

}  // namespace gradwire::autograd
