#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/latency_histogram.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/rpc/agent.h"
#include "gradwire/rpc/callee/server.h"
#include "gradwire/rpc/caller/pending_calls.h"
#include "gradwire/rpc/caller/request_ids.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/membership/directory.h"
#include "gradwire/rpc/membership/shutdown_wait.h"
#include "gradwire/rpc/membership/store_silence.h"
#include "gradwire/rpc/membership/worker_changes.h"
#include "gradwire/rpc/rref/service.h"
#include "gradwire/transport/event_loop.h"

namespace gradwire::rpc {

// The parts of an agent and how they hear of one another.
class AgentImpl : public Peers::Sink, public Directory::Listener {
 public:
  AgentImpl(Agent& agent, RpcBackendOptions options);
  ~AgentImpl() override;

  // Joins the group. On an error everything that was started has ended again.
  absl::Status start(const std::string& name, int rank, int world_size);

  // Sends an encoded request and keeps `call` (its peer, callee, times and completion) until the answer. `borrow`:
  // the caller leaves his tensors alone until then; else what has not left is copied here. `id`: from `pending`.
  void send(uint64_t id, proto::Envelope& envelope, std::vector<transport::Buffer> buffers, bool borrow,
            PendingCalls::Taken call);
  // The same for a call that has a repeatable request (rpc/caller/agent_retries.cc).
  void send_repeatable(uint64_t id, PendingCalls::Taken call);
  void cancel(uint64_t id, absl::Status reason);

  absl::Status shut_down(bool graceful, absl::Duration timeout);

  // Peers::Sink
  void on_request(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                  std::vector<transport::Buffer> buffers) override;
  void on_response(const Worker& from, EnvelopePtr envelope, std::vector<transport::Buffer> buffers) override;
  void on_cancel(const Worker& from, uint64_t link, uint64_t call_id) override;
  void on_link_closed(const Worker& peer, const Link& link, const absl::Status& reason) override;
  void on_link_restored(const Worker& peer) override;
  void on_settled(const Worker& peer) override;
  void on_worker_state(const Worker& peer, WorkerState state) override;
  void on_unresponsive(const Worker& peer, const absl::Status& reason) override;
  void on_worker_lost(const Worker& peer, WorkerState state, const absl::Status& reason) override;

  // Directory::Listener
  void on_joined(const WorkerAddress& worker) override;
  void on_left(const Worker& worker) override;
  void on_died(const Worker& worker, const std::string& by, const std::string& reason) override;
  void on_store_lost(const absl::Status& reason) override;
  void on_store_back() override;

  // Another worker says that this one is dead.
  void on_accused(uint64_t incarnation);
  absl::StatusOr<std::shared_ptr<Peer>> find(const Destination& destination) const;
  absl::StatusOr<WorkerInfo> wait_for_worker(const std::string& name, absl::Duration timeout);

  void count_membership(AgentTables& tables) const;
  // Nothing under way that a graceful shutdown would wait for.
  bool idle() const;
  // FailedPrecondition once calls are refused.
  absl::Status accepts_calls() const;

  Agent& agent;
  const RpcBackendOptions options;
  const FlowWindow::Bounds flow_bounds;
  Worker self;

  // Driven by the executor's threads, and those that wait.
  std::shared_ptr<transport::EventLoop> loop;
  std::shared_ptr<ThreadPool> executor;
  std::unique_ptr<TimerQueue> timers;
  std::unique_ptr<Peers> peers;
  std::shared_ptr<RRefService> rrefs;
  std::unique_ptr<Server> server;
  PendingCalls pending;
  RequestIds request_ids;
  std::vector<std::unique_ptr<AgentExtension>> extensions;
  GraphHook* graph_hook = nullptr;
  std::unique_ptr<Directory> directory;
  std::unique_ptr<WorkerChanges> changes;
  int world_size = 0;

  std::atomic<uint64_t> next_id{1};
  std::atomic<uint64_t> calls_made{0};
  std::atomic<uint64_t> calls_failed{0};
  std::atomic<uint64_t> calls_repeated{0};
  std::atomic<uint64_t> late_answers{0};
  LatencyHistogram latencies;

 private:
  absl::Status join(std::shared_ptr<store::Store> store, int rank, int size);
  absl::Status connect_to_all();
  // The log has the worker's end.
  void agree(uint64_t incarnation);
  bool without_store() const;
  // Peers::link_to, unless calls are refused here.
  absl::StatusOr<std::shared_ptr<Link>> link_to(const std::shared_ptr<Peer>& peer) const;
  // From here on an answer finds the call, and its deadline ends it.
  void add_pending(uint64_t id, PendingCalls::Taken call);
  // Tells the callee that nobody waits for the call any more, and completes it.
  void retract(uint64_t id, PendingCalls::Taken call, absl::Status reason);
  void complete(PendingCalls::Taken call, absl::StatusOr<Answer> answer);
  // Sends a repeatable call once more. May connect, and so block.
  void attempt(uint64_t id);
  // An attempt has failed: another follows, or the call fails.
  void interrupted(uint64_t id, const absl::Status& reason);
  // Tells the callee of a call that is between two attempts.
  void cancel_later(const PendingCall& call, uint64_t id);
  // What the answer to a call carried.
  absl::StatusOr<IncomingPayload> unpack(PendingCall& call, Answer answer);
  // Ends the calls whose time is up, and comes again for the next.
  void expire(absl::Time alarm);
  // One graceful shutdown (agent_shutdown.cc).
  struct GracefulEnd {
    absl::Time deadline;
    // Over all calls to the store that this shutdown makes.
    StoreSilence silence;
    ShutdownWait wait;
  };
  // Waits for what is this worker's own; for an open group that is all.
  absl::Status finish_own_work(GracefulEnd& end);
  // What idle() waits for.
  std::vector<ShutdownWait::Unfinished> unfinished() const;
  absl::Status agree_to_stop(GracefulEnd& end);
  // Waits until all members have called shutdown and nothing is under way anywhere.
  absl::Status agree_in_rounds(const std::string& prefix, const std::vector<Worker>& members,
                               GracefulEnd& end);
  // Both try again while the store is merely silent; Unavailable when it is lost.
  absl::Status write_report(const std::string& key, const proto::ShutdownReport& report, GracefulEnd& end);
  absl::StatusOr<proto::ShutdownReport> read_report(const std::string& key, const Worker& worker,
                                                    const std::vector<Worker>& members, GracefulEnd& end);
  absl::Status store_unanswered(absl::Time began, GracefulEnd& end) const;
  // Unavailable may be due to a member that died with the store it hosted: finds that one.
  absl::Status name_the_dead(const std::vector<Worker>& members, absl::Status status, GracefulEnd& end);
  static absl::Status ended_early(const Worker& worker, const absl::Status& reason);
  absl::Status share_failure(const std::string& prefix, absl::Status status);
  // Ends everything; returns when that has been done, here or by another thread.
  void stop(const absl::Status& reason, absl::Duration flush);
  void stop_everything(const absl::Status& reason, absl::Duration flush);
  // Returns when all threads are joined, or DeadlineExceeded when handlers go on for too long (agent_threads.cc).
  absl::Status end_threads();
  void join_threads();
  // What end_threads() said to the one who stopped this agent, and to nobody after him.
  absl::Status how_it_ended();

  // One graceful shutdown at a time.
  Mutex shutdown_mutex_;
  CondVar shutdown_changed_;
  bool shutting_down_ ABSL_GUARDED_BY(shutdown_mutex_) = false;
  bool shut_down_ ABSL_GUARDED_BY(shutdown_mutex_) = false;
  Mutex stop_mutex_;
  CondVar stop_changed_;
  bool stopping_ ABSL_GUARDED_BY(stop_mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(stop_mutex_) = false;
  absl::Status ended_ ABSL_GUARDED_BY(stop_mutex_);
  std::atomic<bool> closed_{false};

  mutable Mutex membership_mutex_;
  bool store_lost_ ABSL_GUARDED_BY(membership_mutex_) = false;
  // All members have agreed to stop: who leaves now is not mourned.
  bool ending_ ABSL_GUARDED_BY(membership_mutex_) = false;
  // Somebody says they are dead, and the log has not told of them here.
  absl::flat_hash_set<uint64_t> accused_strangers_ ABSL_GUARDED_BY(membership_mutex_);
};

}  // namespace gradwire::rpc
