#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/latency_histogram.h"
#include "base/thread_pool.h"
#include "base/timer_queue.h"
#include "rpc/agent.h"
#include "rpc/directory.h"
#include "rpc/peers.h"
#include "rpc/pending_calls.h"
#include "rpc/rref/service.h"
#include "rpc/server.h"
#include "transport/event_loop.h"

namespace gradwire::rpc {

// The parts of an agent and how they hear of one another.
class AgentImpl : public Peers::Sink {
 public:
  AgentImpl(Agent& agent, RpcBackendOptions options);
  ~AgentImpl() override;

  // Joins the group. On an error everything that was started has ended again.
  absl::Status start(const std::string& name, int rank, int world_size);

  // Sends an encoded request and keeps `call` (its peer, callee, times and completion) until the answer. `borrow`:
  // the caller leaves his tensors alone until then; else what has not left is copied here. `id`: from `pending`.
  void send(uint64_t id, proto::Envelope& envelope, std::vector<transport::Buffer> buffers, bool borrow,
            PendingCalls::Taken call);
  void cancel(uint64_t id, absl::Status reason);

  absl::Status shut_down(bool graceful, absl::Duration timeout);

  // Peers::Sink
  void on_request(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                  std::vector<transport::Buffer> buffers) override;
  void on_response(const Worker& from, EnvelopePtr envelope, std::vector<transport::Buffer> buffers) override;
  void on_cancel(const Worker& from, uint64_t link, uint64_t call_id) override;
  void on_link_closed(const Worker& peer, const Link& link, const absl::Status& reason) override;
  void on_worker_lost(const Worker& peer, const absl::Status& reason) override;

  // Nothing under way that a graceful shutdown would wait for.
  bool idle() const;
  // FailedPrecondition once calls are refused.
  absl::Status accepts_calls() const;

  Agent& agent;
  const RpcBackendOptions options;
  Worker self;

  // Driven by the executor's threads, and those that wait.
  std::shared_ptr<transport::EventLoop> loop;
  std::shared_ptr<ThreadPool> executor;
  std::unique_ptr<TimerQueue> timers;
  std::unique_ptr<Peers> peers;
  std::shared_ptr<RRefService> rrefs;
  std::unique_ptr<Server> server;
  PendingCalls pending;
  std::vector<std::unique_ptr<AgentExtension>> extensions;
  GraphHook* graph_hook = nullptr;
  std::unique_ptr<Directory> directory;
  int world_size = 0;

  std::atomic<uint64_t> next_id{1};
  std::atomic<uint64_t> calls_made{0};
  std::atomic<uint64_t> calls_failed{0};
  std::atomic<uint64_t> late_answers{0};
  LatencyHistogram latencies;

 private:
  absl::Status connect_to_all();
  // Tells the callee that nobody waits for the call any more, and completes it.
  void retract(uint64_t id, PendingCalls::Taken call, absl::Status reason);
  void complete(PendingCalls::Taken call, absl::StatusOr<Answer> answer);
  // What the answer to a call carried.
  absl::StatusOr<IncomingPayload> unpack(PendingCall& call, Answer answer);
  // Ends the calls whose time is up, and comes again for the next.
  void expire(absl::Time alarm);
  // The graceful part of a shutdown (agent_shutdown.cc).
  absl::Status agree_to_stop(absl::Time deadline);
  // Waits until all members have called shutdown and nothing is under way anywhere.
  absl::Status agree_in_rounds(const std::string& prefix, const std::vector<Worker>& members,
                               absl::Time deadline);
  absl::StatusOr<proto::ShutdownReport> read_report(const std::string& key, const Worker& worker,
                                                    absl::Time deadline);
  absl::Status name_the_dead(const std::vector<Worker>& members, absl::Status status);
  static absl::Status ended_early(const Worker& worker, const absl::Status& reason);
  absl::Status share_failure(const std::string& prefix, absl::Status status);
  // Ends everything; returns when that has been done, here or by another thread.
  void stop(const absl::Status& reason, absl::Duration flush);
  void stop_everything(const absl::Status& reason, absl::Duration flush);

  // One graceful shutdown at a time.
  Mutex shutdown_mutex_;
  CondVar shutdown_changed_;
  bool shutting_down_ ABSL_GUARDED_BY(shutdown_mutex_) = false;
  bool shut_down_ ABSL_GUARDED_BY(shutdown_mutex_) = false;
  Mutex stop_mutex_;
  CondVar stop_changed_;
  bool stopping_ ABSL_GUARDED_BY(stop_mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(stop_mutex_) = false;
  std::atomic<bool> closed_{false};
};

}  // namespace gradwire::rpc
