#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "autograd/context_state.h"
#include "autograd/local_executor.h"
#include "autograd/pass_state.h"
#include "base/future.h"
#include "base/mutex.h"
#include "proto/autograd.pb.h"
#include "rpc/agent.h"

namespace gradwire::autograd {

// One worker's part in one backward pass: the protocol (PassState) and the graph (LocalExecutor) under one
// lock, and the messages between. Thread-safe; owned by shared_ptr: its context holds it, and every call
// under way.
//
// Nodes and hooks, user code, run on the thread in run_roots() or in the service call that brought gradients,
// one at a time and without the lock.
class Pass : public std::enable_shared_from_this<Pass> {
 public:
  using Reply = std::function<void(absl::StatusOr<rpc::ServiceReply>)>;
  // Called once, when this worker's part has ended, well or not.
  using Ended = std::function<void(const absl::Status&)>;

  Pass(std::weak_ptr<rpc::Agent> agent, const rpc::Worker& self, std::shared_ptr<ContextState> context,
       proto::Pass header, absl::Time deadline, Ended ended);

  const rpc::Id& id() const { return id_; }
  const rpc::Id& context() const { return context_->id; }

  // ---- What other workers say (autograd.proto).

  void mark(const rpc::Worker& from, const proto::Mark& mark, const Reply& reply);
  // One for each set bit of run.defined().
  void run(const rpc::Worker& from, const proto::Run& run, std::vector<at::Tensor> defined,
           const Reply& reply);
  void finish(const Reply& reply);
  void worker_lost(const rpc::Worker& worker, const absl::Status& reason);
  // The first reason ends the pass, here and on the workers that it reached from here.
  void abort(const absl::Status& reason);

  // ---- At the root.

  // Starts the wave; in the fast mode there is none.
  void start(torch::autograd::edge_list roots, const std::vector<at::Tensor>& inputs);
  // Done when run_roots() may be called, or with the pass's error.
  Future<void> wave_over() const { return wave_over_.future(); }
  // Delivers the gradients of the roots and runs what can be run here.
  void run_roots(torch::autograd::variable_list gradients);
  // Done when every worker has ended its part.
  Future<void> completion() const { return completion_.future(); }

 private:
  void begin_fast();
  void send_marks(const LocalExecutor::Reach& reach, const std::vector<uint64_t>& numbers);
  // Runs nodes until none is ready; returns at once when another thread does.
  void drain();
  absl::Status keep(LocalExecutor::Task& task);
  void ship(const RecvNode& node, torch::autograd::variable_list gradients);
  void send_finish(uint64_t incarnation);
  void send_abort(uint64_t incarnation, const absl::Status& reason);
  static void reply_to_run(const Reply& reply, const absl::Status& status);
  void perform(PassState::Actions actions);
  uint64_t add_reply_locked(const Reply& reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status here(absl::Status status) const;

  const std::weak_ptr<rpc::Agent> agent_;
  const rpc::Worker self_;
  const std::shared_ptr<ContextState> context_;
  const proto::Pass header_;
  const rpc::Id id_;
  const absl::Time deadline_;
  const Ended ended_;

  Mutex mutex_;
  PassState state_ ABSL_GUARDED_BY(mutex_);
  // nullptr once the part has ended. LocalExecutor::run() is called without the lock.
  std::shared_ptr<LocalExecutor> executor_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Reply> replies_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_reply_ ABSL_GUARDED_BY(mutex_) = 1;
  bool fast_begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;

  const Promise<void> wave_over_;
  const Promise<void> completion_;
};

}  // namespace gradwire::autograd
