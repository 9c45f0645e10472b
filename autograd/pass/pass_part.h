#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "google/protobuf/message_lite.h"
#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/graph/local_executor.h"
#include "gradwire/autograd/pass/pass_state.h"
#include "gradwire/autograd/pass/plan.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/codec/device.h"
#include "gradwire/codec/id.h"
#include "gradwire/device/streams.h"
#include "gradwire/proto/autograd.pb.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/core/extension.h"
#include "gradwire/rpc/flight/call_parent.h"

namespace gradwire::autograd {

using PassReply = std::function<void(absl::StatusOr<rpc::ServiceReply>)>;

// A RUN that has arrived.
struct ArrivedRun {
  rpc::Worker from;
  proto::Run run;
  // One gradient for each set bit of run.defined().
  std::vector<at::Tensor> defined;
  // Their devices at the sender; empty if all were on the CPU.
  std::vector<rpc::Device> sender_devices;
  // After it the gradients may be used; nullptr if they are on the CPU.
  StreamFencePtr fence;
  PassReply reply;
};

// Wakes the thread that called backward(), and hands it the RUNs that arrive while it waits. Thread-safe.
class RootWait {
 public:
  // `executor`: the executor whose tasks the thread runs while it waits; may be nullptr.
  explicit RootWait(const std::shared_ptr<Executor>& executor)
      : wave_over_(executor), completion_(executor) {}

  Future<void> wave_over() const { return wave_over_.future(); }
  Future<void> completion() const { return completion_.future(); }

  // Reports that the gradients of the roots may be delivered.
  void begin_run() const { wave_over_.set_value(); }
  // Reports that the pass has ended.
  void end(const absl::Status& status);

  // Announces a thread that will call take() until the pass has ended. From now on RUNs can be handed over.
  void attend();
  // Hands a RUN to the thread: moves from `arrived`. Returns false if no thread takes RUNs.
  bool hand_over(ArrivedRun& arrived);
  struct Batch {
    std::vector<ArrivedRun> arrived;
    // The pass has ended, and no more RUNs are handed over.
    bool ended = false;
    // Completes when another RUN is handed over or the pass ends. Of use only if `arrived` is empty and the
    // pass has not ended.
    Future<void> more;
  };
  // Returns the RUNs that were handed over since the last call. Does not wait.
  Batch take();

 private:
  void wake();

  const Promise<void> wave_over_;
  const Promise<void> completion_;

  Mutex mutex_;
  bool attended_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<ArrivedRun> arrived_ ABSL_GUARDED_BY(mutex_);
  std::optional<Promise<void>> more_ ABSL_GUARDED_BY(mutex_);
};

// Sends the messages of one worker's part of a pass, and holds the header that all messages of the pass have
// in common. Thread-safe, except set_plan(), which the root may call before the first message.
class PassCalls {
 public:
  struct Options {
    std::weak_ptr<rpc::Agent> agent;
    rpc::Worker self;
    proto::Pass header;
    // The deadline of every call.
    absl::Time deadline;
    // At the root: the call whose handler began the pass, or a pass, or nothing.
    rpc::CallParent parent;
  };
  explicit PassCalls(Options options);

  // The header without the plan.
  const proto::Pass& header() const { return header_.pass(); }
  const rpc::Id& id() const { return id_; }
  const rpc::Worker& self() const { return self_; }
  const rpc::CallParent& parent() const { return parent_; }
  absl::Time deadline() const { return deadline_; }
  std::shared_ptr<rpc::Agent> agent() const { return agent_.lock(); }
  bool is_root() const { return id_.origin == self_.incarnation; }
  // Whether a RUN of this pass is a FINISH too, which is answered when the receiver's part has ended: a RUN
  // from the root in a planned pass is.
  bool run_is_finish(uint64_t from, uint64_t to) const {
    return header().planned() && from == id_.origin && to != from;
  }

  // At the root the whole plan; on another worker the part of the plan that it received.
  const Plan& plan() const { return plan_; }
  // Must be called at the root, before the first message.
  void set_plan(Plan plan);

  // Unavailable if the worker was lost.
  absl::StatusOr<rpc::Worker> find(uint64_t incarnation) const;
  // Sends `message`, to which it adds the header. Unless send() returns an error, `answered` is called once,
  // on any thread, with the proto::PassAnswer or with the error of the pass on that worker. The error's
  // message begins with `what` and the worker's name. `destinations`: the receiver's device for each tensor.
  template <class Answered>
  absl::Status send(const rpc::Worker& to, uint32_t service, const google::protobuf::MessageLite& message,
                    std::unique_ptr<rpc::TensorSet> tensors, std::vector<rpc::Device> destinations,
                    const char* what, Answered answered) const {
    const std::shared_ptr<rpc::Agent> agent = agent_.lock();
    if (agent == nullptr) return agent_gone();
    const rpc::ParentScope pass(rpc::CallParent::pass(id_.origin, id_.counter));
    agent->services()
        .call_service(to, service, with_header(to.incarnation, message), std::move(tensors),
                      {.deadline = deadline_, .repeat = true, .destinations = std::move(destinations)})
        .on_ready_inline([what, name = to.name,
                          answered = std::move(answered)](const absl::StatusOr<rpc::ServiceReply>& reply) {
          answered(read_answer(reply, what, name));
        });
    return absl::OkStatus();
  }
  void send_abort(uint64_t incarnation, const absl::Status& reason) const;

  // Makes the answer to a message of a pass that has failed here.
  static rpc::ServiceReply failure(const absl::Status& status);

 private:
  static absl::Status agent_gone();
  static absl::StatusOr<proto::PassAnswer> read_answer(const absl::StatusOr<rpc::ServiceReply>& reply,
                                                       const char* what, const std::string& worker);
  // Returns the serialized message, preceded by the header and by the part of the plan that `to` needs.
  std::string with_header(uint64_t to, const google::protobuf::MessageLite& message) const;

  const std::weak_ptr<rpc::Agent> agent_;
  const rpc::Worker self_;
  // The header, in a FINISH message, which has no other fields.
  proto::Finish header_;
  const rpc::Id id_;
  Plan plan_;
  const absl::Time deadline_;
  const rpc::CallParent parent_;

  mutable std::once_flag parts_written_;
  // For each part of the plan, a serialized header that contains only that part.
  mutable std::vector<std::string> parts_;
};

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
  // other workers or user code. `may_destroy`: whether this thread may run destructors of user objects, if it
  // is not on duty (base/duty.h).
  void update(Event event, bool may_destroy = true);
  // Processes the answer to a message of the pass, on any thread: calls `event` if it is OK, otherwise ends
  // the pass with the error.
  void answered(const absl::StatusOr<proto::PassAnswer>& answer, Event event);

  // At the root, when the pass has ended: destroys the graph, if the thread that ended the part did not. Call
  // on the thread of backward().
  void release_graph();

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
  void settle_locked(Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Performs the actions, without the lock.
  void perform(Effects& effects, bool may_destroy);
  void send_finish(uint64_t incarnation);
  // REQUIRES: `mutex_` is held. Only Locked calls it, and Locked exists only while the mutex is held.
  uint64_t owe_locked(const PassReply& reply) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Marks an error with the name of this worker.
  absl::Status with_this_worker(absl::Status status) const;

  PassCalls calls_;
  const Ended ended_;
  const absl::Time began_;
  // nullptr without an agent.
  const std::shared_ptr<Executor> executor_;
  RootWait root_;

  Mutex mutex_;
  PassState state_ ABSL_GUARDED_BY(mutex_);
  // nullptr once the part has ended. LocalExecutor::run() is called without the lock.
  std::shared_ptr<LocalExecutor> graph_ ABSL_GUARDED_BY(mutex_);
  // At the root: a graph that release_graph() destroys.
  std::shared_ptr<LocalExecutor> spent_ ABSL_GUARDED_BY(mutex_);
  // The streams on which nodes have run. Set when the part ends.
  device::StreamSet streams_ ABSL_GUARDED_BY(mutex_);
  // The replies that are owed, by number.
  HashMap<uint64_t, PassReply> replies_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_reply_ ABSL_GUARDED_BY(mutex_) = 1;
  // A thread is in run_nodes().
  bool running_ ABSL_GUARDED_BY(mutex_) = false;

  std::atomic<bool> part_ended_{false};
};

}  // namespace gradwire::autograd
