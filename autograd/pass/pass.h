#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/autograd/context/context_state.h"
#include "gradwire/autograd/graph/local_executor.h"
#include "gradwire/autograd/pass/pass_state.h"
#include "gradwire/autograd/pass/plan.h"
#include "gradwire/base/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/proto/autograd.pb.h"
#include "gradwire/rpc/agent.h"

namespace gradwire::autograd {

// One worker's part in one backward pass: the protocol (PassState) and the graph (LocalExecutor) under one
// lock, and the messages between. Thread-safe; owned by shared_ptr: its context holds it, and every call
// under way.
//
// Nodes and hooks, user code, run on the thread in run_roots() and wait_for_end(), or elsewhere in run(), one at a time and
// without the lock.
class Pass : public std::enable_shared_from_this<Pass> {
 public:
  using Reply = std::function<void(absl::StatusOr<rpc::ServiceReply>)>;
  // Called once, when this worker's part has ended, well or not.
  using Ended = std::function<void(const absl::Status&)>;

  Pass(std::weak_ptr<rpc::Agent> agent, const rpc::Worker& self, std::shared_ptr<ContextState> context,
       proto::Pass header, absl::Time deadline, Ended ended);

  const rpc::Id& id() const { return id_; }
  const proto::Pass& header() const { return header_; }
  const rpc::Id& context() const { return context_->id; }
  // This worker's part is over.
  bool ended() const { return part_ended_.load(std::memory_order_acquire); }

  // ---- What other workers say (autograd.proto).

  void mark(const rpc::Worker& from, const proto::Mark& mark, const Reply& reply);
  void need(const rpc::Worker& from, const proto::Needed& needed, const Reply& reply);
  // Before the pass starts: tensors of this worker whose gradients the root asks for.
  absl::Status add_inputs(const std::vector<at::Tensor>& inputs);
  struct Run {
    rpc::Worker from;
    proto::Run run;
    // One for each set bit of run.defined().
    std::vector<at::Tensor> defined;
    Reply reply;
  };
  void run(Run arrived);
  // Leaves it to the thread in wait_for_end(), and moves from it. False when there is none: it is to be run() then, where the
  // user's code may run.
  bool hand_over(Run& arrived);
  void finish(const Reply& reply);
  void abort_asked(const absl::Status& reason);
  void worker_lost(const rpc::Worker& worker, const absl::Status& reason);
  // The first reason ends the pass, here and on the workers that it reached from here.
  void abort(const absl::Status& reason);

  // ---- At the root.

  // Starts the wave, unless it is known already what it would find, or taken for granted (the fast mode).
  void start(torch::autograd::edge_list roots);
  // Returns when run_roots() may be called, or with the pass's error. Aborts the pass at the deadline.
  absl::Status wait_for_wave(absl::Time deadline);
  // The gradients of these tensors do not go into the context but are kept here, until take_apart(). Before start().
  void keep_apart(const std::vector<at::Tensor>& tensors);
  Gradients take_apart();
  // Delivers the gradients of the roots and runs what can be run here. wait_for_end() must follow.
  void run_roots(torch::autograd::variable_list gradients);
  // Returns when every worker has ended its part; runs what arrives meanwhile. Aborts the pass at the deadline.
  absl::Status wait_for_end(absl::Time deadline);

 private:
  // A MARK or a NEEDED that a walk calls for.
  struct WaveMessage {
    uint64_t to = 0;
    bool needed = false;
    SentTensorsField tensors;
  };
  // At most one of each kind for each worker.
  static std::vector<WaveMessage> wave_messages(const LocalExecutor::Reach& reach);
  void send_wave(std::vector<WaveMessage> messages, const std::vector<uint64_t>& numbers);
  // What MARK and NEEDED have in common: `walk` is called with the lock.
  void serve_wave(const rpc::Worker& from, uint64_t number, const Reply& reply,
                  absl::FunctionRef<absl::StatusOr<LocalExecutor::Reach>()> walk);
  static std::vector<uint64_t> receivers_of(const std::vector<WaveMessage>& messages);
  // The wave's outcome where those who sent what was reached have said where its gradients go on to.
  std::optional<Plan> plan_of(const LocalExecutor::Reach& reach) const;
  // A worker that was lost before this part knew of it: worker_lost() does not come any more.
  void notice_loss(uint64_t incarnation);
  void notice_losses(const rpc::Worker& from);
  void start_planned(const LocalExecutor::Reach& reach);
  // Of each message, nullptr where the context has none.
  std::vector<std::shared_ptr<SendNode>> find_send_nodes(const std::vector<uint64_t>& messages) const;
  absl::Status no_such_message(uint64_t message) const;
  // Marks what is known without being told: in the fast mode everything, else what is planned for this worker. Once.
  void begin();
  void begin_fast();
  // Whether a planned message of this worker's own leads on to what it received.
  bool begin_planned();
  // Internal: a walk reached a tensor that this worker's part of the plan lacks.
  static absl::Status check_planned(const Onward& part, const LocalExecutor::Reach& reach);
  absl::Status mark_planned_locked(const std::vector<std::shared_ptr<SendNode>>& nodes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Everything is marked: with inputs, what has no use is known.
  void begin_run_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status deliver_locked(Run& arrived) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has the thread in wait_for_end() look.
  void tell_waiting();
  void abort_late();
  // Runs nodes until none is ready; returns at once when another thread does.
  void drain();
  absl::Status keep(LocalExecutor::Task& task);
  // Notices gradients of tensors that arrived outside every context. FailedPrecondition where the root wants none.
  absl::Status check_joined(const LocalExecutor::Task& task);
  bool is_apart(const at::Tensor& tensor);
  // The header for this worker, with what it has to know of the plan.
  void write_header(uint64_t to, proto::Pass& out) const;
  void ship(const RecvNode& node, torch::autograd::variable_list gradients);
  void send_finish(uint64_t incarnation);
  void send_abort(uint64_t incarnation, const absl::Status& reason);
  void on_answer(const absl::StatusOr<proto::PassAnswer>& answer,
                 absl::FunctionRef<void(PassState&, PassState::Actions&)> event);
  static void reply_to_run(const Reply& reply, const absl::Status& status);
  // `on_executor`: whether this thread may run destructors of the user's objects.
  void perform(PassState::Actions actions, bool on_executor = true);
  uint64_t add_reply_locked(const Reply& reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status here(absl::Status status) const;

  // Guarded by the context's mutex: undefined where no gradient has come yet.
  Gradients apart_;
  const std::weak_ptr<rpc::Agent> agent_;
  const rpc::Worker self_;
  const std::shared_ptr<ContextState> context_;
  // What nodes, and the sums of a pass that is recorded, run in.
  const std::shared_ptr<const ActiveContext> active_;
  // Const once a message has been sent or has come. The header lacks the plan.
  proto::Pass header_;
  const rpc::Id id_;
  // Const once a message has been sent or has come. At the root the whole, elsewhere the part that came.
  Plan plan_;
  const absl::Time deadline_;
  const Ended ended_;

  Mutex mutex_;
  PassState state_ ABSL_GUARDED_BY(mutex_);
  // nullptr once the part has ended. LocalExecutor::run() is called without the lock.
  std::shared_ptr<LocalExecutor> executor_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Reply> replies_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_reply_ ABSL_GUARDED_BY(mutex_) = 1;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  // A graph that could not be let go of where the part ended.
  std::shared_ptr<LocalExecutor> spent_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  // A thread is, or will be, in wait_for_end(): what it is to run, and what it waits for while it sleeps.
  bool attended_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Run> handed_over_ ABSL_GUARDED_BY(mutex_);
  std::optional<Promise<void>> news_ ABSL_GUARDED_BY(mutex_);

  std::atomic<bool> part_ended_{false};
  const Promise<void> wave_over_;
  const Promise<void> completion_;
};

}  // namespace gradwire::autograd
